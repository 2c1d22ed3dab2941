//! stub
use crate::answer::Answer;
use crate::problem::Problem;
/// x
pub struct Page;
/// x
pub struct PageSettings {
    /// x
    pub title: String,
    /// x
    pub media_origins: Vec<String>,
}
impl Page {
    /// x
    pub fn site(_dir: std::path::PathBuf, _f: Option<String>) -> std::io::Result<Self> {
        Ok(Page)
    }
    /// x
    pub fn built_in(_s: PageSettings) -> Self {
        Page
    }
    /// x
    pub async fn answer(&self, _head: &http::request::Parts) -> Result<Answer, Problem> {
        Ok(crate::answer::bytes_of(http::StatusCode::OK, "text/html", "<h1>tollgate</h1>".into()))
    }
}
