//! Compresses the files of `static/` once, at build time, so that a start does not.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[path = "src/routes/compress.rs"]
mod compress;

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script its folder this way")]
fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=static");
    println!("cargo::rerun-if-changed=src/routes/compress.rs");
    let target = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    compress_folder(Path::new("static"), &target.join("static"))
}

/// Writes `NAME.CODING` for each file and coding; an empty file where a coding does not make it smaller.
fn compress_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            compress_folder(&path, &to.join(name))?;
            continue;
        }
        let bytes = fs::read(&path)?;
        for (coding, compress) in compress::CODINGS {
            let small = compress(&bytes)?;
            let small = if small.len() < bytes.len() { small } else { Vec::new() };
            fs::write(to.join(format!("{}.{coding}", name.to_string_lossy())), small)?;
        }
    }
    Ok(())
}
