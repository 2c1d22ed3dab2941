//! Drops the comments of the files of `static/` and compresses them once, at build time, so that a start does not, and
//! lists them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

type Compress = fn(&[u8]) -> io::Result<Vec<u8>>;

/// In order of preference, as in `src/routes/page/file.rs`.
const CODINGS: [(&str, Compress); 2] = [("br", brotli), ("gzip", gzip)];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script its folder this way")]
pub(crate) fn compress_files() -> io::Result<()> {
    println!("cargo::rerun-if-changed=static");
    let target = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let (from, mut rows) = (env::current_dir()?.join("static"), Vec::new());
    compress_folder(&from, "", &target.join("static"), &mut rows)?;
    rows.sort();
    fs::write(target.join("files.rs"), format!("&[\n{}]", rows.concat()))
}

/// Writes `NAME.CODING` for each file and coding; an empty file where a coding does not make it smaller. Each file
/// is a row of Rust, without the file itself if gzip makes it smaller.
fn compress_folder(from: &Path, below: &str, to: &Path, rows: &mut Vec<String>) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            compress_folder(&path, &format!("{below}{name}/"), &to.join(name), rows)?;
            continue;
        }
        let bytes = match name.rsplit('.').next() {
            Some("js" | "css" | "html") => lean(&fs::read_to_string(&path)?).into_bytes(),
            _ => fs::read(&path)?,
        };
        if name.ends_with(".html") {
            // The settings complete it at start.
            fs::write(to.join(&name), &bytes)?;
        }
        let (mut compressed, mut is_smaller) = (Vec::new(), false);
        for (coding, compress) in CODINGS {
            let small = compress(&bytes)?;
            is_smaller = small.len() < bytes.len();
            let form = to.join(format!("{name}.{coding}"));
            fs::write(&form, if is_smaller { small } else { Vec::new() })?;
            compressed.push(format!("include_bytes!({form:?})"));
        }
        // The last coding is gzip.
        let plain = if is_smaller { "&[]".to_owned() } else { format!("include_bytes!({path:?})") };
        let forms = compressed.join(", ");
        rows.push(format!("    Embedded::new(\"{below}{name}\", {plain}, [{forms}]),\n"));
    }
    Ok(())
}

/// Drops what browsers need not load, and people read in the repository: indentation, and the text of lines that belong
/// to a comment alone. Lines keep their numbers. In a template of several lines, none may depend on its indentation or
/// begin like a comment.
fn lean(text: &str) -> String {
    let mut is_inside = false;
    let mut code = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let begins =
            trimmed.starts_with("/*") && (trimmed.ends_with("*/") || !trimmed.contains("*/"));
        let is_markup = trimmed.starts_with("<!--") && trimmed.ends_with("-->");
        let is_comment = is_inside || begins || is_markup || trimmed.starts_with("//");
        is_inside = (is_inside || begins) && !trimmed.ends_with("*/");
        code += if is_comment { "\n" } else { line.trim_start_matches(' ') };
    }
    code
}

fn brotli(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut small = Vec::new();
    let best = brotli::enc::BrotliEncoderParams { quality: 11, ..Default::default() };
    brotli::BrotliCompress(&mut &bytes[..], &mut small, &best)?;
    Ok(small)
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
