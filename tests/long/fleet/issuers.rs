//! Servers of one shared ledger serve the users of one issuer.

use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::{CHAT, Reply, Upstream};

const SETTINGS: &str = "access.mode = \"jwt\"\nmcp.enabled = true\n\
    access.jwt = { issuer = \"https://one.example\", audience = \"a\", jwks = \"http://127.0.0.1:9/keys\" }\n";
const OTHER: [(&str, &str); 1] = [(
    "TOLLGATE_ACCESS__JWT",
    "{ issuer = \"https://two.example\", audience = \"a\", jwks = \"http://127.0.0.1:9/keys\" }",
)];
/// Counts how often a server records its secret, and an issuer.
const COUNT: &str = "CREATE SEQUENCE secrets; CREATE SEQUENCE issuers;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM nextval(TG_ARGV[0]); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER UPDATE OF secret ON servers
        FOR EACH STATEMENT EXECUTE FUNCTION note('secrets');
    CREATE TRIGGER note AFTER UPDATE ON members_version
        FOR EACH STATEMENT EXECUTE FUNCTION note('issuers')";

#[test]
fn server_of_another_issuer_is_refused_and_check_says_so() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, SETTINGS, 1);
    assert_eq!(fleet.run(&["check"]).code, Some(0));
    let checked = fleet.run_with(&["check"], &OTHER);
    let mut refused = fleet.start_command(&["serve"], &OTHER);
    assert_eq!((refused.wait().code(), checked.code), (Some(2), Some(2)), "{checked:?}");
    for said in [refused.printed(), checked.stderr] {
        assert!(said.contains("are those of https://one.example"), "{said}");
    }
    // Nothing depends on which server recorded it, and each records it once.
    fleet.database.sql(COUNT);
    fleet.add();
    let recorded = "SELECT secrets.last_value, issuers.last_value FROM secrets, issuers";
    assert_eq!(fleet.database.sql(recorded), "1|1");
    assert_eq!(fleet.buy(1, "/api/v1/chat", "k", CHAT).status, 401);
}
