//! The folder, seen from the file system.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;

use super::folder::Tidied;
use super::*;
use crate::gateway::contract::money::Usd;

const MP4: &[u8] = b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41";
const DAY: Duration = Duration::from_secs(86_400);

fn job(request_id: &str, owner: &str) -> Job {
    Job {
        request_id: request_id.into(),
        purchase: None,
        owner: owner.into(),
        key: None,
        model: "video-a-2".into(),
        price: Usd::dollars(3),
        at: Duration::ZERO,
        prompt: None,
        latest_update: None,
    }
}

fn keep(folder: &Folder, job: &Job) {
    let mut part = folder.new_part(job).unwrap();
    part.write_all(MP4).unwrap();
    folder.finish(job, part).unwrap();
}

fn names(folder: &TempDir) -> Vec<String> {
    let files = fs::read_dir(folder.path().join("videos")).unwrap();
    let mut names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn set_age(folder: &TempDir, what: &str, now: Duration, age: Duration) {
    for name in names(folder).into_iter().filter(|name| name.ends_with(what)) {
        let file = File::options().write(true).open(folder.path().join("videos").join(name));
        file.unwrap().set_modified(UNIX_EPOCH + (now - age)).unwrap();
    }
}

fn temporary() -> (TempDir, Folder) {
    let folder = TempDir::new().unwrap();
    let videos = Folder::new(folder.path().join("videos"));
    (folder, videos)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn video_has_its_name_when_it_is_whole_and_is_readable_by_its_user_only() {
    let (folder, videos) = temporary();
    let (own, other) = (job("../../etc/passwd", "member:ann"), job("job-2", "member:ann"));
    let mut part = videos.new_part(&own).unwrap();
    part.write_all(MP4).unwrap();
    assert_eq!((mode(&folder.path().join("videos")), mode(part.path())), (0o700, 0o600));
    assert!(videos.is_being_written(&own, clock::wall()) && videos.open(&own).is_none());
    assert!(!videos.is_being_written(&other, clock::wall()));
    let path = part.path().to_owned();
    videos.finish(&own, part).unwrap();
    assert!(!path.exists());
    let [name] = &names(&folder)[..] else { panic!("one file") };
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'), "{name}");
    assert_eq!(mode(&folder.path().join("videos").join(name)), 0o600);
    assert_eq!((videos.state(&own), videos.state(&other)), (KeptState::Kept, KeptState::Missing));
    let stranger = job("../../etc/passwd", "member:bob");
    assert_eq!(videos.state(&stranger), KeptState::Missing, "an owner is part of the name");
    drop(videos.new_part(&other).unwrap());
    assert_eq!(names(&folder).len(), 1, "a part that is given up is gone");
}

#[test]
fn oldest_videos_make_room_and_are_not_fetched_again() {
    let (folder, videos) = temporary();
    let now = clock::wall();
    for (number, id) in (1..).zip(["c", "b", "a"]) {
        keep(&videos, &job(id, "ann"));
        let stem = names(&folder).into_iter().find(|name| {
            let path = folder.path().join("videos").join(name);
            fs::metadata(path).unwrap().modified().unwrap() > UNIX_EPOCH + now - DAY
        });
        set_age(&folder, &stem.unwrap(), now, (5 - number) * DAY);
    }
    let size = MP4.len() as u64;
    let tidied = videos.tidy(30 * DAY, 2 * size + 1, now);
    let expected = Tidied { expired: 0, over_quota: 1, bytes_over_quota: size, bytes: 2 * size };
    assert_eq!(tidied, expected);
    let states = ["a", "b", "c"].map(|id| videos.state(&job(id, "ann")));
    assert_eq!(states, [KeptState::Kept, KeptState::Kept, KeptState::OverQuota]);
    assert_eq!(videos.tidy(30 * DAY, 2 * size, now).over_quota, 0);
    let tidied = videos.tidy(DAY, u64::MAX, now);
    assert_eq!((tidied.expired, tidied.bytes), (2, 0));
}

#[test]
fn removed_video_stays_removed_and_failed_one_is_tried_again_a_day_later() {
    let (folder, videos) = temporary();
    let (removed, failed) = (job("a", "ann"), job("b", "ann"));
    keep(&videos, &removed);
    let mut open = videos.open(&removed).unwrap();
    videos.remove(&removed).unwrap();
    videos.note_failure(&failed, "too dark").unwrap();
    assert_eq!(videos.state(&removed), KeptState::Removed);
    assert_eq!(videos.state(&failed), KeptState::Failed("too dark".to_owned()));
    let mut rest = Vec::new();
    open.file.read_to_end(&mut rest).unwrap();
    assert_eq!(open.length, MP4.len() as u64, "whoever reads it reads it to its end");
    let now = clock::wall() + 2 * DAY;
    videos.tidy(30 * DAY, u64::MAX, now);
    assert_eq!(videos.state(&failed), KeptState::Missing);
    videos.tidy(30 * DAY, u64::MAX, now + 400 * DAY);
    assert_eq!(videos.state(&removed), KeptState::Removed);
    keep(&videos, &failed);
    keep(&videos, &job("c", "bob"));
    videos.remove_of(&["ann".to_owned()]);
    assert_eq!(names(&folder).len(), 1);
    assert_eq!(videos.state(&job("c", "bob")), KeptState::Kept);
}

#[test]
fn parts_of_ended_servers_are_removed_and_those_of_others_are_not() {
    let (folder, videos) = temporary();
    let (old, fresh) = (job("a", "ann"), job("b", "ann"));
    let kept_open = [&old, &fresh].map(|job| videos.new_part(job).unwrap());
    let now = clock::wall();
    let old_name = kept_open[0].path().file_name().unwrap().to_str().unwrap();
    set_age(&folder, old_name, now, Duration::from_secs(180));
    assert!(!videos.is_being_written(&old, now), "its server has ended");
    videos.remove_stale_parts(false, now);
    assert_eq!(names(&folder).len(), 1);
    videos.remove_stale_parts(true, now);
    assert_eq!(names(&folder).len(), 0);
    let [_, part] = kept_open;
    videos.finish(&fresh, part).expect_err("it is gone");
}
