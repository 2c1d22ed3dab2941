//! Secrets are those that are written, in `.env`.

use super::*;

#[test]
fn secret_in_env_file_is_the_one_that_is_written() {
    let secret = "$HOME/${PATH}#$$0123456789abcdefghijklm";
    for written in [secret.to_owned(), format!("'{secret}'"), format!("\"{secret}\"")] {
        let folder = folder(&[(".env", &format!("HOME=x\nTOLLGATE_SECRET={written}\n"))]);
        let read = load(folder.path(), &[]).expect("valid settings").settings.secret;
        assert_eq!(read.expect("a secret").expose(), secret, "{written}");
    }
    let others = "A=b c\nB=\"\\n\"\nTOLLGATE_PAGE__TITLE=mine\n";
    let loaded = load(folder(&[(".env", others)]).path(), &[]).expect("valid settings");
    assert_eq!(loaded.settings.page.title, "mine", "variables of other programs do not matter");
}
