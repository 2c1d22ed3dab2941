//! The list of members in this process alone: as plain as can be, since every backend has to do the same.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::Memory;
use crate::store::member::MOST_LOGINS;
use crate::store::{
    Answer, Identity, Member, MemberFault, Members, Own, Role, Session, Unavailable,
};

/// Members by name, and logins in the order in which they were opened.
#[derive(Default)]
pub(super) struct Roll {
    members: BTreeMap<Arc<str>, Member>,
    sessions: Vec<Session>,
    edition: u64,
}

impl Roll {
    fn enlist(&mut self, member: &Member) -> Result<(), MemberFault> {
        if self.members.contains_key(&member.name) {
            return Err(MemberFault::Taken);
        }
        self.members.insert(Arc::clone(&member.name), member.clone());
        Ok(())
    }

    fn revoke(&mut self, name: &str, now: Duration) -> Result<(), MemberFault> {
        let member = self.members.get_mut(name).ok_or(MemberFault::Unknown)?;
        member.revoked.get_or_insert(now);
        self.sessions.retain(|session| &*session.member != name);
        Ok(())
    }

    fn active(&mut self, name: &str) -> Result<&mut Member, MemberFault> {
        let member = self.members.get_mut(name).ok_or(MemberFault::Unknown)?;
        if member.revoked.is_some() { Err(MemberFault::Revoked) } else { Ok(member) }
    }

    fn rotate(&mut self, name: &str, token: Identity, prefix: Arc<str>) -> Result<(), MemberFault> {
        let member = self.active(name)?;
        (member.token, member.prefix) = (token, prefix);
        self.sessions.retain(|session| &*session.member != name);
        Ok(())
    }

    fn log_in(&mut self, session: &Session, now: Duration) {
        self.sessions = self.logins(now);
        self.sessions.retain(|other| other.id != session.id);
        self.sessions.push(session.clone());
        let own = self.sessions.iter().filter(|other| other.member == session.member).count();
        let oldest = self.sessions.iter().position(|other| other.member == session.member);
        if let Some(oldest) = oldest.filter(|_| own > MOST_LOGINS) {
            self.sessions.remove(oldest);
        }
    }

    /// Those that are not over. A login that raced with the end of its token is none.
    fn logins(&self, now: Duration) -> Vec<Session> {
        let holds = |session: &&Session| {
            let member = self.members.get(&session.member);
            let member = member.filter(|member| member.revoked.is_none());
            session.until > now && member.is_some_and(|member| member.token == session.token)
        };
        self.sessions.iter().filter(holds).cloned().collect()
    }
}

impl Memory {
    fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Roll, Duration) -> T,
    ) -> Answer<'static, Result<T, Unavailable>> {
        let answer = self.roll.lock().map(|roll| look(&roll, (self.clock)()));
        Box::pin(ready(answer.map_err(|_| broken())))
    }

    fn change<E: From<Unavailable> + Send + 'static>(
        &self,
        change: impl FnOnce(&mut Roll, Duration) -> Result<(), E>,
    ) -> Answer<'static, Result<(), E>> {
        let answer = match self.roll.lock() {
            Ok(mut roll) => {
                let changed = change(&mut roll, (self.clock)());
                roll.edition += u64::from(changed.is_ok());
                changed
            }
            Err(_) => Err(broken().into()),
        };
        Box::pin(ready(answer))
    }
}

fn broken() -> Unavailable {
    Unavailable("a step of the members broke".into())
}

impl Members for Memory {
    fn enlist<'a>(&'a self, member: &'a Member) -> Answer<'a, Result<(), MemberFault>> {
        self.change(|roll, _| roll.enlist(member))
    }

    fn revoke(&self, name: Arc<str>) -> Answer<'_, Result<(), MemberFault>> {
        self.change(|roll, now| roll.revoke(&name, now))
    }

    fn update(
        &self,
        name: Arc<str>,
        role: Option<Role>,
        own: Option<Own>,
    ) -> Answer<'_, Result<(), MemberFault>> {
        self.change(|roll, _| {
            let member = roll.active(&name)?;
            member.role = role.unwrap_or(member.role);
            member.own = own.unwrap_or(member.own);
            Ok(())
        })
    }

    fn rotate(
        &self,
        name: Arc<str>,
        token: Identity,
        prefix: Arc<str>,
    ) -> Answer<'_, Result<(), MemberFault>> {
        self.change(|roll, _| roll.rotate(&name, token, prefix))
    }

    fn members(&self) -> Answer<'_, Result<Vec<Member>, Unavailable>> {
        self.look(|roll, _| roll.members.values().cloned().collect())
    }

    fn log_in<'a>(&'a self, session: &'a Session) -> Answer<'a, Result<(), Unavailable>> {
        self.change(|roll, now| {
            roll.log_in(session, now);
            Ok(())
        })
    }

    fn log_out(&self, id: Identity) -> Answer<'_, Result<(), Unavailable>> {
        self.change(|roll, _| {
            roll.sessions.retain(|session| session.id != id);
            Ok(())
        })
    }

    fn sessions(&self) -> Answer<'_, Result<Vec<Session>, Unavailable>> {
        self.look(Roll::logins)
    }

    fn keyed_by(&self) -> Answer<'_, Result<Option<Identity>, Unavailable>> {
        Box::pin(ready(Ok(None)))
    }

    fn key_by(&self, _: Identity) -> Answer<'_, Result<(), Unavailable>> {
        Box::pin(ready(Ok(())))
    }

    fn edition(&self) -> Answer<'_, Result<u64, Unavailable>> {
        self.look(|roll, _| roll.edition)
    }
}
