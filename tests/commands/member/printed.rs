//! The order and the words of what `tollgate member` prints.

use crate::commands::fixture::Fixture;
use crate::support::process;

#[test]
fn announcement_stands_before_its_token_on_a_terminal() {
    let fixture = Fixture::open();
    for (arguments, count) in
        [(&["add", "ann"][..], 1), (&["rotate", "ann"], 1), (&["add", "bob", "cid"], 2)]
    {
        let arguments = [&["member"], arguments].concat();
        let shown = process::run_on_terminal(fixture.folder.path(), &arguments, &[], true);
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        let lines: Vec<_> = shown.stderr.lines().collect();
        let announced = lines.iter().rposition(|line| line.ends_with("is shown only once:"));
        let token = lines.iter().position(|line| line.contains("tg_"));
        assert!(announced.is_some() && announced < token, "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.contains("tg_")).count(), count);
    }
}

#[test]
fn token_is_printed_even_if_nobody_reads_the_announcement() {
    let fixture = Fixture::open();
    let full = "exec 2>/dev/full";
    let ended = process::run_after(fixture.folder.path(), &["member", "add", "ann"], full);
    assert!(ended.stdout.starts_with("tg_"), "{ended:?}");
    assert_eq!(fixture.members().len(), 1);
}

#[test]
fn wrong_budget_is_one_line_that_says_the_problem_then_what_is_expected() {
    let fixture = Fixture::open();
    let expected = "expected dollars and a period (day, week, month or ever), such as 5.00/day or \
                    50.00/month";
    for (budget, problem) in [
        ("$50/month", "\"$50\" is not a plain amount"),
        ("50/fortnight", "\"fortnight\" is not a period"),
        ("50", "there is no period"),
    ] {
        let said = fixture.refused(&["add", "ann", "--budget", budget], 2);
        let line = said.lines().next().expect("a line");
        assert!(line.ends_with(&format!("': {problem}; {expected}")), "{said}");
    }
}
