//! `GET /bff/admin/…`: whoever asks is an admin, or is told that it is not, before anything is looked up.

use bytes::Bytes;

use super::Parts;
use crate::answer::Answer;
use crate::downstream::Call;
use crate::problem::Problem;
use crate::reports::admin::{self, Admin};
use crate::validate;

pub(super) async fn usage(parts: &Parts, call: &Call<Bytes>) -> Result<Answer, Problem> {
    admin::must_be_admin(call.standing.role)?;
    let query = validate::everybody(call.head.uri.query())?;
    parts.report(call, parts.admin.usage(query)).await
}

pub(super) async fn members(office: &Admin, call: &Call<Bytes>) -> Result<Answer, Problem> {
    admin::must_be_admin(call.standing.role)?;
    office.members().await
}

pub(super) async fn jobs(office: &Admin, call: &Call<Bytes>) -> Result<Answer, Problem> {
    admin::must_be_admin(call.standing.role)?;
    office.jobs().await
}

pub(super) async fn billing(parts: &Parts, call: &Call<Bytes>) -> Result<Answer, Problem> {
    admin::must_be_admin(call.standing.role)?;
    parts.report(call, parts.admin.billing()).await
}
