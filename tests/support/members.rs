//! Adds and revokes members of a running gate, as another process would.

use std::sync::Mutex;

use aho_corasick::AhoCorasick;
use tokio::runtime;
use tollgate::access::token::{self, Secret};
use tollgate::ledger::{
    Actor, GroupChange, Member, MemberChange, MemberTerms, Role, Selection, SpendLimit, Store,
    TermsChange,
};

use super::{Gate, lock, until};

/// The hash key of all gates in this process.
pub(crate) const SECRET: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// A member and its token.
pub(crate) struct Holder {
    pub(crate) name: &'static str,
    pub(crate) token: String,
    bearer: String,
    store: Store,
}

impl Gate {
    /// Adds a member, and returns once the gate knows it.
    pub(crate) fn member(&self, name: &'static str) -> Holder {
        self.member_with(name, Role::Member, SpendLimit::default())
    }

    /// Does the same with a role and its own budget.
    pub(crate) fn member_with(&self, name: &'static str, role: Role, own: SpendLimit) -> Holder {
        let (store, access) = self.members();
        let before = access.member_count().expect("members may call").members;
        let token = self.mint();
        let secret = Secret::new(SECRET.as_bytes());
        let member = Member {
            name: name.into(),
            terms: MemberTerms { role, budget: own, ..MemberTerms::default() },
            token: token::hash_token(&secret, &token),
            prefix: token::prefix(&token).into(),
            added_at: tollgate::clock::wall(),
            revoked_at: None,
        };
        wait(store.change_member(&operator(), name.into(), MemberChange::Add(member)))
            .expect("nobody has the name");
        until("the gate knows the new member", || {
            access.member_count().is_some_and(|count| count.members > before)
        });
        let bearer = format!("Bearer {token}");
        Holder { name, token, bearer, store }
    }

    /// Adds or changes a group.
    pub(crate) fn group(&self, name: &str, change: GroupChange) {
        wait(self.members().0.change_group(&operator(), name.into(), change))
            .expect("it can be changed");
    }

    /// Returns a new token, which must not leak.
    fn mint(&self) -> String {
        let token = token::mint().expect("random numbers").expose().to_owned();
        self.secrets.keep(&token);
        token
    }
}

impl Holder {
    /// Returns the header that authenticates it.
    pub(crate) fn bearer(&self) -> (&str, &str) {
        ("authorization", &self.bearer)
    }

    /// Revokes it.
    pub(crate) fn revoke(&self) {
        wait(self.store.change_member(&operator(), self.name.into(), MemberChange::Revoke))
            .expect("it is there");
    }

    /// Changes its role.
    pub(crate) fn becomes(&self, role: Role) {
        self.update(TermsChange { role: Some(role), ..TermsChange::default() });
    }

    /// Moves it to another group.
    pub(crate) fn joins(&self, group: &str) {
        let group = Some(Some(group.into()));
        self.update(TermsChange { group, ..TermsChange::default() });
    }

    /// Changes what it may buy.
    pub(crate) fn may_buy(&self, names: &str) {
        let may_buy = Some(Some(Selection::parse(names)));
        self.update(TermsChange { may_buy, ..TermsChange::default() });
    }

    fn update(&self, change: TermsChange) {
        let change = MemberChange::Update(change);
        wait(self.store.change_member(&operator(), self.name.into(), change)).expect("it is there");
    }

    /// Replaces its token.
    pub(crate) fn rotate(&mut self, gate: &Gate) {
        let token = gate.mint();
        let hash = token::hash_token(&Secret::new(SECRET.as_bytes()), &token);
        let prefix = token::prefix(&token).into();
        wait(self.store.change_member(
            &operator(),
            self.name.into(),
            MemberChange::Rotate(hash, prefix),
        ))
        .expect("it is there");
        self.bearer = format!("Bearer {token}");
        self.token = token;
    }
}

/// Secrets that must not be in answers, logs or files.
#[derive(Default)]
pub(super) struct Secrets(Mutex<Vec<String>>);

impl Secrets {
    pub(super) fn keep(&self, text: &str) {
        lock(&self.0).push(text.to_owned());
    }

    /// Fails the test if `bytes` contain one of them.
    pub(super) fn assert_absent(&self, place: &str, text: &[u8]) {
        let secrets = AhoCorasick::new(&*lock(&self.0)).unwrap();
        assert!(!secrets.is_match(text), "a member's token is in {place}");
    }
}

fn operator() -> Actor {
    Actor::command_line("ops", "host")
}

fn wait<E>(verb: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    runtime::Builder::new_current_thread().build().unwrap().block_on(verb)
}
