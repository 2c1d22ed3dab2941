//! The settings of a login service.

use super::read;
use super::*;

const SERVICE: &str = "issuer = 'https://login.example.com/a', client_id = 'tollgate'";

fn access(oidc: &str) -> String {
    format!("[access]\nmode = 'oidc'\noidc = {{ {oidc} }}")
}

#[test]
fn login_service_has_defaults_and_a_secret_from_the_environment() {
    let config = read(&access(SERVICE), &[]).expect("valid settings");
    let AccessMode::Oidc(oidc) = config.access.mode else { panic!("not oidc") };
    assert_eq!(
        (&*oidc.token.issuer, &*oidc.scopes),
        ("https://login.example.com/a", "openid profile")
    );
    assert_eq!(oidc.session, Duration::from_secs(12 * 3_600));
    assert_eq!(oidc.login_host().as_deref(), Some("login.example.com"));
    assert!(oidc.client_secret.is_none() && oidc.allow.is_empty());

    let secret = [("OIDC_CLIENT_SECRET", "hunter2")];
    let more = format!("{SERVICE}, allow = [{{ claim = '/a/b', is = 'ai' }}], session = '168h'");
    let config = read(&access(&more), &secret).expect("valid settings");
    assert!(!format!("{config:?}").contains("hunter2"));
    let AccessMode::Oidc(oidc) = config.access.mode else { panic!("not oidc") };
    assert_eq!(oidc.client_secret.expect("a secret").expose(), "hunter2");
    assert_eq!(oidc.allow[0].claim, ClaimPath(vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn each_error_in_a_login_service_is_printed() {
    for (file, printed) in [
        ("[access]\nmode = 'oidc'".to_owned(), "2:8: access.mode: expected a table [access.oidc]"),
        (
            format!("[access]\noidc = {{ {SERVICE} }}"),
            "2:8: access.oidc: expected access.mode = \"oidc\"",
        ),
        (access("client_id = 'a'"), "3:8: access.oidc: expected a setting `issuer`"),
        (
            access("issuer = 'https://login.example.com'"),
            "3:8: access.oidc: expected a setting `client_id`",
        ),
        (
            access("issuer = 'http://login.example.com', client_id = 'a'"),
            "3:19: access.oidc.issuer: expected https",
        ),
        (
            access("issuer = 'https://login.example.com/?a=b', client_id = 'a'"),
            "3:19: access.oidc.issuer: expected an address without a query",
        ),
        (
            access("issuer = 'https://login.microsoftonline.com/common/v2.0', client_id = 'a'"),
            "3:19: access.oidc.issuer: expected the issuer of one tenant",
        ),
        (
            access("issuer = 'https://login.microsoftonline.com/{tenantid}/v2.0', client_id = 'a'"),
            "3:19: access.oidc.issuer: expected the issuer of one tenant",
        ),
        (access(&format!("{SERVICE}, scopes = ['email']")), "expected \"openid\" among them"),
        (access(&format!("{SERVICE}, scopes = ['openid a']")), "expected a scope without spaces"),
        (access(&format!("{SERVICE}, session = '169h'")), "expected a time of at most \"168h\""),
        (
            access(&format!("{SERVICE}, allow = [{{ claim = 'a' }}]")),
            "access.oidc.allow: expected a setting `is`",
        ),
        (access(&format!("{SERVICE}, name_claim = '/a~b'")), "expected a JSON pointer"),
        (access(&format!("{SERVICE}, scope = 'x'")), "unknown setting `access.oidc.scope`"),
        (
            format!("server.hosts = ['ai.example.com']\n{}", access(SERVICE)),
            "3:8: access.mode: expected server.public_url with \"oidc\"",
        ),
    ] {
        let errors = read(&file, &[]).expect_err(&file);
        assert!(errors.len() == 1 && errors[0].contains(printed), "{file}\n{errors:#?}\n{printed}");
    }
    let errors = read(&access(SERVICE), &[("OIDC_CLIENT_SECRET", "hunter2\nhunter2")]);
    let errors = errors.expect_err("two lines");
    assert!(errors[0].starts_with("OIDC_CLIENT_SECRET: ") && !errors[0].contains("hunter2"));
}
