//! The jobs in the ledger.

use std::sync::Arc;
use std::time::Duration;

use super::handle::PostgresStore;
use crate::store::{Job, StatusUpdate, Unavailable};

impl PostgresStore {
    pub(in crate::store) async fn insert_job(&self, _job: &Job) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn update_job(
        &self,
        _request_id: Arc<str>,
        _update: StatusUpdate,
    ) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn find_job(
        &self,
        _request_id: Arc<str>,
    ) -> Result<Option<Job>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn open_jobs(&self) -> Result<Vec<Job>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn jobs_of(
        &self,
        _owner: Arc<str>,
        _most: usize,
    ) -> Result<Vec<Job>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn latest_jobs(
        &self,
        _most: usize,
    ) -> Result<Vec<Job>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn job_durations(
        &self,
        _model: Arc<str>,
        _most: usize,
    ) -> Result<Vec<Duration>, Unavailable> {
        Err(self.unsupported())
    }
}
