//! The admin view shows the members with their budgets, and what admins changed.

use crate::gate::Gate;
use crate::sign_in::signed_in;

#[test]
fn audit_tab_lists_what_admins_changed_the_latest_first() {
    let gate = Gate::start_for_members();
    let ada = gate.member(&["add", "ada", "--role", "admin"]);
    gate.member(&["add", "ann", "--budget", "1.00/day"]);
    gate.member(&["update", "ann", "--budget", "2.00/week"]);
    let page = signed_in(&gate, &ada);
    page.find(("link", "Admin")).click();
    page.find(("tab", "Members")).click();
    page.wait_for_text("$0.00 of $2.00 this week");
    page.find(("tab", "Audit")).click();
    let acts = "[...document.querySelectorAll('#admin-panel tbody tr')].map(({ cells }) => `${cells[2].textContent} ${cells[3].textContent}`).join()";
    page.wait_until(&format!("{acts} === 'member.budget ann,member.add ann,member.add ada'"));
    page.wait_for_text("2.00/week");
}
