//! Prepares the files of the page, if it is part of the build.

#[cfg(feature = "page")]
#[path = "build/page.rs"]
mod page;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "page")]
    page::compress_files()?;
    Ok(())
}
