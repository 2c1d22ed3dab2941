//! `[jobs]`: how a video job's status is read.

use super::read::{Section, section};
use super::value::{line, pointer};

section! {
    pub struct JobsConfig {
        /// Values of the field `status` or `state` that mean: finished, if there is an address at `result`.
        pub finished: Vec<String> = list("finished", line, words(FINISHED)),
        /// Values that mean: failed, if they last a minute.
        pub failed: Vec<String> = list("failed", line, words(FAILED)),
        /// JSON pointers to the finished video's address; the first that exists is used.
        pub result: Vec<String> = list("result", pointer, words(RESULT)),
        /// Whether the ledger keeps a video's prompt. The sandbox's default is `true`.
        pub keep_prompts: bool = flag("keep_prompts"),
    }
}

const FINISHED: &[&str] = &["completed", "succeeded", "success", "done", "finished", "ready"];
const FAILED: &[&str] = &["failed", "error", "cancelled", "canceled", "expired", "rejected"];
const RESULT: &[&str] =
    &["/video_url", "/url", "/output/url", "/output/0", "/result/url", "/data/0/url"];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn jobs(section: &mut Section<'_>, is_sandbox: bool) -> JobsConfig {
    let mut jobs = JobsConfig::read(section);
    jobs.keep_prompts |= is_sandbox && !section.has("keep_prompts");
    if jobs.failed.iter().any(|word| jobs.finished.contains(word)) {
        let written = if section.has("failed") { "failed" } else { "finished" };
        section.error(written, "expected no word in both jobs.finished and jobs.failed");
    }
    jobs
}
