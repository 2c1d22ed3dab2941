//! What is passed over, and named.

use std::sync::Arc;

use super::*;
use crate::contract::catalog::Catalog;
use crate::validate::ChatRules;
use crate::validate::ignored::MOST_NAMED;

/// The names of what was passed over in a chat with these further fields.
fn named(further: &str) -> Option<String> {
    let rules = ChatRules { catalog: Arc::new(Catalog::published()), fields: Vec::new() };
    let payload = format!(
        r#"{{"model":"eta-5-mini","messages":[{{"role":"user","content":"hi"}}]{further}}}"#
    );
    chat(payload.as_bytes(), &rules).expect(further).ignored.names()
}

#[test]
fn what_was_passed_over_is_named_unless_it_was_null() {
    assert_eq!(named(""), None);
    assert_eq!(named(r#","seed":null"#), None);
    assert_eq!(named(r#","seed":7,"user":"ann","top_p":null"#), Some("seed, user".to_owned()));
}

#[test]
fn names_fit_a_header_whatever_they_are() {
    assert_eq!(named(r#","a b\r\n":1,"é.-_":1"#), Some("a?b??, ?.-_".to_owned()));
    let many: String = (0..MOST_NAMED + 2).map(|number| format!(r#","f{number}":1"#)).collect();
    let names = named(&many).expect("names");
    assert_eq!(names.split(", ").count(), MOST_NAMED);
    assert!(names.starts_with("f0, f1, ") && names.ends_with(", f31"), "{names}");
}
