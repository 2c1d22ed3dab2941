//! Two servers that share a ledger, behind a load balancer that moves the page from one to the other.

use std::time::Duration;

use crate::page::Page;
use crate::relay::Relay;
use crate::support::fleet::Fleet;
use crate::support::postgres::Cluster;
use crate::support::reply::Latch;
use crate::support::{Reply, Upstream, until_within};
use crate::videos::{IS_READY, PROMPT, order};

const CLIP: &[u8] = include_bytes!("../../../src/gateway/sandbox/clips/landscape.mp4");
/// The built-in page, which servers of a fleet have no need of otherwise.
const BUILT_IN: [(&str, &str); 1] = [("TOLLGATE_PAGE__DIR", "")];
/// Longer than a dead server has claimed its videos.
const CLAIM: Duration = Duration::from_secs(180);

#[test]
fn page_that_is_moved_to_another_server_in_the_middle_of_a_video_shows_it() {
    let is_done = Latch::new();
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ if received.target.ends_with(".mp4") => {
            Reply::new(200, CLIP).header("content-type", "video/mp4")
        }
        _ if is_done.is_open() => {
            let host = received.values("host")[0];
            let url = format!("http://{host}/clip.mp4");
            Reply::new(200, format!(r#"{{"status":"completed","video_url":"{url}"}}"#))
        }
        _ => Reply::new(200, r#"{"status":"running","progress":40}"#),
    });
    let media = format!("page.media_origins = [\"http://{}\"]", upstream.address());
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, &media, 0);
    (0..2).for_each(|_| fleet.add_with(&BUILT_IN));
    let balancer = Relay::to(fleet.servers[0].address);
    let origin = format!("http://{}", balancer.address);
    let mut page = Page::new(&origin);
    page.expect_errors(&["Failed to load resource", "net::ERR_"]);
    page.goto(&format!("{origin}/#video"));
    page.find(PROMPT);
    order(&page, "A lighthouse");
    page.find(("progressbar", "Progress…"));
    // The server dies. The browser connects again, to the other one.
    fleet.servers[0].process.kill();
    balancer.redirect(fleet.servers[1].address);
    is_done.open();
    let open = "SELECT count(*) FROM jobs WHERE state = 'open'";
    until_within(CLAIM, "the other server polls", || fleet.database.sql(open) == "0");
    page.wait_until(IS_READY);
    assert_eq!(page.times_asked(&format!("POST {origin}/api/v1/video")), 1);
    assert_eq!(upstream.charges(), [3_000_000]);
    // The other server knows the rest of the page, too.
    page.reload();
    page.wait_until(IS_READY);
}
