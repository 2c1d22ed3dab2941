//! stub
use crate::answer::Answer;
use crate::problem::Problem;
/// x
pub struct Page;
impl Page {
    /// x
    pub async fn answer(&self, _head: &http::request::Parts) -> Result<Answer, Problem> {
        Ok(crate::answer::bytes_of(http::StatusCode::OK, "text/html", "<h1>tollgate</h1>".into()))
    }
}
