//! A kept video is its owner's, who removes it, as an admin does and the owner's revocation.

use std::sync::Arc;

use super::{CONTENT, SETTINGS, clip, files, gateway, video};
use crate::support::client::Answer;
use crate::support::members::SECRET;
use crate::support::process::run;
use crate::support::{Gate, Upstream, VIDEO, until};

const REMOVAL: &str = "/bff/video?request_id=job-1";

fn ask(gate: &Gate, bearer: &str, method: &str, target: &str) -> Answer {
    gate.ask(method, target, &[("authorization", bearer)], "")
}

fn start(upstream: &Upstream) -> Gate {
    Gate::binary(upstream, &format!("{SETTINGS}access.mode = \"members\"\n"), &[])
}

fn command(gate: &Gate, arguments: &[&str]) -> String {
    let ended = run(gate.folder(), arguments, &[("TOLLGATE_SECRET", SECRET)]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

/// Adds a member, and returns its header.
fn member(gate: &Gate, name: &str, role: &str) -> String {
    let token = command(gate, &["member", "add", name, "--role", role]);
    let bearer = format!("Bearer {}", token.trim());
    until("the server knows the member", || ask(gate, &bearer, "GET", "/bff/me").status == 200);
    bearer
}

/// Buys a video, and waits until it is kept.
fn buy(gate: &Gate, bearer: &str) {
    let key = uuid::Uuid::now_v7().to_string();
    let headers = [("authorization", bearer), ("idempotency-key", &*key)];
    assert_eq!(gate.ask("POST", "/api/v1/video", &headers, VIDEO).status, 200);
    until("it is kept", || ask(gate, bearer, "GET", "/bff/jobs").text().contains("\"kept\":true"));
}

#[test]
fn kept_video_is_served_to_its_owner_and_removed_by_its_owner_only() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let mut gate = start(&upstream);
    let (ann, bob) = (member(&gate, "ann", "member"), member(&gate, "bob", "member"));
    buy(&gate, &ann);
    assert_eq!(gate.get(CONTENT).code(), "missing_credentials");
    for target in [CONTENT, "/v1/videos/job-1/content"] {
        assert_eq!(ask(&gate, &bob, "GET", target).status, 404);
        assert_eq!(ask(&gate, &ann, "GET", target).body, clip());
    }
    assert_eq!(ask(&gate, &bob, "DELETE", REMOVAL).code(), "job_not_found");
    assert_eq!(ask(&gate, &ann, "DELETE", "/bff/video?request_id=job-9").code(), "job_not_found");
    assert_eq!(ask(&gate, &ann, "DELETE", "/bff/video").status, 422);
    assert_eq!(gate.ask("DELETE", REMOVAL, &[], "").code(), "missing_credentials");
    assert_eq!(ask(&gate, &ann, "GET", CONTENT).status, 200);
    for _ in 0..2 {
        assert_eq!(ask(&gate, &ann, "DELETE", REMOVAL).status, 204);
    }
    let removed = ask(&gate, &ann, "GET", CONTENT);
    assert_eq!((removed.status, removed.code().as_str()), (404, "not_found"));
    assert!(ask(&gate, &ann, "GET", "/bff/jobs").text().contains("\"removed\":true"));
    assert!(files(&gate.folder().join("videos"), "video").is_empty());
    // It is not fetched again after a restart, and its neighbour is not harmed.
    buy(&gate, &ann);
    gate.restart();
    assert_eq!(ask(&gate, &ann, "GET", "/bff/video/content?request_id=job-2").status, 200);
    assert_eq!(ask(&gate, &ann, "GET", CONTENT).status, 404);
    assert_eq!(media.requests(), 2);
}

#[test]
fn admin_removes_the_video_of_a_member() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let gate = start(&upstream);
    let (ann, root) = (member(&gate, "ann", "member"), member(&gate, "root", "admin"));
    buy(&gate, &ann);
    assert_eq!(ask(&gate, &root, "GET", CONTENT).status, 404, "an admin does not watch it");
    assert_eq!(ask(&gate, &root, "DELETE", REMOVAL).status, 204);
    assert_eq!(ask(&gate, &ann, "GET", CONTENT).status, 404);
    assert!(files(&gate.folder().join("videos"), "video").is_empty());
}

#[test]
fn videos_of_a_revoked_member_are_removed() {
    let media = Upstream::start(|_| video(clip()));
    let upstream = gateway(&media, &Arc::default());
    let mut gate = start(&upstream);
    let (ann, bob) = (member(&gate, "ann", "member"), member(&gate, "bob", "member"));
    buy(&gate, &ann);
    buy(&gate, &bob);
    let folder = gate.folder().join("videos");
    assert_eq!(files(&folder, "video").len(), 2);
    command(&gate, &["member", "revoke", "ann"]);
    // A server looks once a minute, and when it starts.
    gate.restart();
    until("it is removed", || files(&folder, "video").len() == 1);
    let kept = ask(&gate, &bob, "GET", "/bff/video/content?request_id=job-2");
    assert_eq!((kept.status, kept.body), (200, clip()));
    assert_eq!(media.requests(), 2, "it is not fetched again");
}
