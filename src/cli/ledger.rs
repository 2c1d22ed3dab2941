//! Finds the ledger's file for the commands that work beside a running server.

use std::io::{self, Write};
use std::path::Path;

use crate::config::{Config, Store};

/// Says which file was written: a wrong working folder, or a variable that is missing, is seen by it.
pub(super) fn name(path: &Path, err: &mut impl Write) -> io::Result<()> {
    let whole = path.canonicalize();
    writeln!(err, "the ledger is {} (store.url)", whole.as_deref().unwrap_or(path).display())
}

/// The file, or a sentence on why there is none to look into.
pub(super) fn file(config: &Config) -> Result<&Path, String> {
    let path = match &config.store {
        Store::Sqlite(path) => path,
        Store::Memory => {
            return Err(
                "store.url is \"memory\": what was bought is known to the running server alone, and \
                 no ledger is on disk (in sandbox mode this is the default, as it is play money)"
                    .to_owned(),
            );
        }
    };
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) => Err(format!(
            "there is no ledger at {} (store.url): the server makes it at its first start",
            path.display()
        )),
        Err(error) => Err(format!("the ledger at {} cannot be read: {error}", path.display())),
    }
}
