use std::os::unix::fs::PermissionsExt;

use futures_util::TryStreamExt;
use tempfile::TempDir;

use super::*;

const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
const PNG_END: &[u8] = b"\0\0\0\0IEND\xaeB`\x82";
const DAY: Duration = Duration::from_secs(86_400);

fn png(width: u32, height: u32) -> Vec<u8> {
    [PNG_HEAD, &width.to_be_bytes(), &height.to_be_bytes(), b"\x08\x06\0\0\0crc.", PNG_END].concat()
}

fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let [sof, components] = [b"\xff\xc2\0\x0b\x08", b"\x01\x01\x11\0\xff"];
    let (width, height) = (width.to_be_bytes(), height.to_be_bytes());
    [b"\xff\xd8\xff\xe0\0\x06JFIF", &sof[..], &height, &width, &components[..], b"\xda\xff\xd9"]
        .concat()
}

fn webp(chunk: &[u8]) -> Vec<u8> {
    let size = u32::try_from(chunk.len() + 4).unwrap().to_le_bytes();
    [b"RIFF", &size[..], b"WEBP", chunk].concat()
}

fn webps() -> [Vec<u8>; 3] {
    [
        webp(b"VP8X\x0a\0\0\0\0\0\0\0\x1f\x03\0\x57\x02\0"),
        webp(b"VP8L\x05\0\0\0\x2f\x1f\xc3\x95\0"),
        webp(b"VP8 \x0a\0\0\0\x30\x01\0\x9d\x01\x2a\x20\x03\x58\x02"),
    ]
}

fn code(bytes: &[u8]) -> &'static str {
    format::identify(bytes).map_or_else(|it| it.kind().code, |it| it.media_type)
}

#[test]
fn format_is_that_of_the_content() {
    for bytes in webps() {
        assert_eq!(code(&bytes), "image/webp", "{bytes:?}");
    }
    assert_eq!(code(&png(1, 8_192)), "image/png");
    assert_eq!(code(&jpeg(8_192, 1)), "image/jpeg");
}

#[test]
fn picture_without_area_or_with_a_huge_side_is_refused() {
    let tall = webp(b"VP8X\x0a\0\0\0\0\0\0\0\x00\x20\0\0\0\0");
    let pngs = [png(0, 1), png(1, 0), png(8_193, 1), png(1, u32::MAX)];
    let jpegs = [jpeg(0, 600), jpeg(u16::MAX, 600)];
    for bytes in pngs.into_iter().chain(jpegs).chain([tall]) {
        assert_eq!(code(&bytes), "invalid_request", "{bytes:?}");
    }
}

#[test]
fn documents_and_polyglots_are_no_pictures() {
    let html = b"<!doctype html><script>alert(1)</script>";
    let with_html = |picture: Vec<u8>| [&picture[..], html].concat();
    for bytes in [
        html.to_vec(),
        b"<svg xmlns=\"http://www.w3.org/2000/svg\" onload=\"alert(1)\"/>".to_vec(),
        b"GIF89a\x01\0\x01\0".to_vec(),
        b"%PDF-1.7".to_vec(),
        b"PK\x03\x04".to_vec(),
        [b"\x89PNG\r\n\x1a\n", &html[..]].concat(),
        [PNG_HEAD, html].concat(),
        with_html(png(1, 1)),
        with_html(jpeg(1, 1)),
        with_html(webps()[0].clone()),
        [&html[..], &png(1, 1)].concat(),
        b"\xff\xd8\xff\xff\xff\xd9".to_vec(),
        b"\xff\xd8\xff\xe0\0\0\xff\xd9".to_vec(),
        webp(b"JUNK\0\0\0\0"),
        Vec::new(),
    ] {
        assert_eq!(code(&bytes), "unsupported_media_type", "{bytes:?}");
    }
}

#[test]
fn truncated_picture_is_refused_at_every_length() {
    for whole in webps().into_iter().chain([png(1, 1), jpeg(1, 1)]) {
        for length in 0..whole.len() {
            assert_eq!(code(&whole[..length]), "unsupported_media_type", "{length}");
        }
    }
}

fn caller(last: u8) -> Caller {
    Caller::Address([192, 0, 2, last].into())
}

fn fixture() -> (TempDir, Arc<Pictures>) {
    let folder = tempfile::tempdir().unwrap();
    let pictures = Arc::new(Pictures::beside(&folder.path().join("tollgate.db")));
    (folder, pictures)
}

async fn add(pictures: &Pictures, last: u8) -> Result<(String, Duration), Problem> {
    pictures.add(&caller(last), png(1, 1).into()).await
}

async fn content(pictures: &Pictures, id: &str) -> Option<Vec<u8>> {
    let (file, bytes, _) = pictures.find(id, true).await.ok()?;
    let chunks: Vec<Bytes> = read(file, bytes).try_collect().await.unwrap();
    let content = chunks.concat();
    assert_eq!(content.len() as u64, bytes);
    Some(content)
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path().join("tollgate.db.pictures")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn picture_is_private_on_disk_and_survives_a_restart() {
    let (folder, pictures) = fixture();
    let (first, second) = (add(&pictures, 1).await.unwrap().0, add(&pictures, 1).await.unwrap().0);
    assert!(first != second && first.len() == 43, "256 random bits");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path().join("tollgate.db.pictures")), 0o700);
    for file in files(&folder) {
        assert_eq!(mode(&file), 0o600);
        assert!(!file.to_str().unwrap().contains("192.0.2"), "{file:?}");
    }
    fs::write(folder.path().join("tollgate.db.pictures/notes.txt"), "unrelated").unwrap();
    let restarted = Pictures::beside(&folder.path().join("tollgate.db"));
    for pictures in [&*pictures, &restarted] {
        assert_eq!(content(pictures, &first).await, Some(png(1, 1)));
        for other in ["", "notes", "../tollgate.db", &first[..42], &first.to_uppercase()] {
            assert_eq!(content(pictures, other).await, None, "{other}");
        }
    }
}

#[tokio::test]
async fn picture_expires_after_a_day_and_its_file_is_deleted() {
    let (folder, pictures) = fixture();
    let start = Duration::from_secs(1_800_000_000);
    clock::set_wall(Some(start));
    let (id, expires) = add(&pictures, 1).await.unwrap();
    assert_eq!(expires, start + DAY);
    clock::set_wall(Some(start + DAY - Duration::from_secs(1)));
    Arc::clone(&pictures).purge_expired().await;
    assert!(content(&pictures, &id).await.is_some());
    clock::set_wall(Some(start + DAY));
    assert!(content(&pictures, &id).await.is_none());
    assert_eq!(files(&folder).len(), 1);
    Arc::clone(&pictures).purge_expired().await;
    assert_eq!(files(&folder).len(), 0);
    clock::set_wall(None);
}

#[tokio::test]
async fn picture_is_served_a_hundred_times() {
    let (_folder, pictures) = fixture();
    let id = add(&pictures, 1).await.unwrap().0;
    for _ in 0..100 {
        assert!(pictures.find(&id, false).await.is_ok(), "a HEAD request does not count");
        assert!(pictures.find(&id, true).await.is_ok());
    }
    assert!(pictures.find(&id, true).await.is_err());
    assert!(pictures.find(&id, false).await.is_err());
}

/// Leaves pictures of 8 MiB in the folder, as an earlier process would have.
async fn fill(folder: &TempDir, owners: std::ops::Range<u8>) -> Pictures {
    let (other, pictures) = fixture();
    for owner in owners {
        let id = add(&pictures, owner).await.unwrap().0;
        let stored = lock(&pictures.index).remove(&id).unwrap().file;
        let name = stored.file_name().unwrap().to_str().unwrap();
        let target = folder.path().join("tollgate.db.pictures");
        fs::create_dir_all(&target).unwrap();
        for number in 0..8 {
            let file = fs::File::create(target.join(format!("{number}{name}"))).unwrap();
            file.set_len(8 << 20).unwrap();
        }
    }
    drop(other);
    Pictures::beside(&folder.path().join("tollgate.db"))
}

#[tokio::test]
async fn pictures_are_limited_per_caller_and_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = fill(&folder, 0..1).await;
    let refused = add(&pictures, 0).await.unwrap_err();
    assert_eq!(refused.kind().code, "rate_limited");
    let wait = refused.retry_delay().unwrap();
    assert!(wait <= DAY && wait > DAY - Duration::from_secs(60), "{wait:?}");
    assert!(add(&pictures, 1).await.is_ok(), "another caller");
    let pictures = fill(&folder, 1..16).await;
    let refused = add(&pictures, 99).await.unwrap_err();
    assert_eq!(refused.kind().code, "overloaded");
    clock::set_wall(Some(clock::wall() + DAY));
    assert!(add(&pictures, 99).await.is_ok(), "expired pictures do not count");
    clock::set_wall(None);
}

#[tokio::test]
async fn small_pictures_count_as_64_kib() {
    let (_folder, pictures) = fixture();
    let id = add(&pictures, 1).await.unwrap().0;
    {
        let mut index = lock(&pictures.index);
        let picture = index.remove(&id).unwrap();
        for number in 0..1_023 {
            let Picture { file, owner, .. } = &picture;
            let copy = Picture { file: file.clone(), owner: owner.clone(), ..picture };
            index.insert(number.to_string(), copy);
        }
    }
    assert!(add(&pictures, 1).await.is_ok());
    assert!(add(&pictures, 1).await.is_err());
}

#[tokio::test]
async fn failed_write_is_refused_and_does_not_count() {
    let (folder, pictures) = fixture();
    fs::write(folder.path().join("tollgate.db.pictures"), "not a folder").unwrap();
    assert_eq!(add(&pictures, 1).await.unwrap_err().kind().code, "internal");
    assert!(lock(&pictures.index).is_empty());
}
