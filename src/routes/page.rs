//! Answers everything that is no endpoint: with the built-in page, or with the site in `page.dir`.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use super::assets;
use super::file::{REVALIDATE, Ready, header_map};
use super::site::{Site, navigates};
use crate::answer::{self, Answer};
use crate::problem::{self, Problem};

pub enum Page {
    BuiltIn { index: Ready, manifest: Ready },
    Site(Site),
}

impl Page {
    /// The page in the binary: `title` is the name that people read, clips may be played from `media_origins`,
    /// too. Its markup depends on the settings, so it is compressed now.
    pub fn built_in(title: &str, media_origins: &[String]) -> Self {
        let markup = assets::INDEX.replacen(PLACEHOLDER, &head(title, &assets::base()), 1);
        let mut headers = header_map([
            (CACHE_CONTROL, REVALIDATE),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("permissions-policy"), PERMISSIONS),
        ]);
        let policy = HeaderValue::try_from(policy(media_origins));
        let policy = policy.unwrap_or(HeaderValue::from_static(NOTHING));
        headers.insert(CONTENT_SECURITY_POLICY, policy);
        let plain = header_map([(CACHE_CONTROL, REVALIDATE), (X_CONTENT_TYPE_OPTIONS, "nosniff")]);
        let manifest = Ready::new(manifest(title).into(), MANIFEST, &plain);
        Self::BuiltIn { index: Ready::new(markup.into(), HTML, &headers), manifest }
    }

    pub async fn answer(&self, head: &Parts) -> Result<Answer, Problem> {
        let found = match self {
            Self::BuiltIn { index, manifest } => match head.uri.path() {
                "/" => Some(index.answer(&head.method, &head.headers)),
                "/manifest.webmanifest" => Some(manifest.answer(&head.method, &head.headers)),
                // Browsers ask for it wherever no page has named an icon, such as beside a JSON document.
                "/favicon.ico" => assets::icon(head),
                _ => assets::answer(head),
            },
            Self::Site(site) => site.answer(head).await?,
        };
        match found {
            Some(answer) => Ok(answer),
            None if navigates(&head.headers) => Ok(nothing_here()),
            None => Err(Problem::new(&problem::NOT_FOUND)),
        }
    }
}

const PLACEHOLDER: &str = "{{head}}";
const HTML: &str = "text/html; charset=utf-8";
const MANIFEST: &str = "application/manifest+json";
const NOTHING_HERE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
    <title>Nothing here</title><h1>There is nothing at this address</h1>\
    <p><a href=\"/\">Go to the start page</a></p></html>\n";

/// Everything that a browser may refuse on the page's behalf, but what the page itself uses.
const PERMISSIONS: &str = "accelerometer=(), autoplay=(self), camera=(), clipboard-write=(self), \
    display-capture=(), encrypted-media=(), fullscreen=(self), geolocation=(), gyroscope=(), \
    magnetometer=(), microphone=(), midi=(), payment=(), picture-in-picture=(self), \
    publickey-credentials-get=(), screen-wake-lock=(), usb=(), xr-spatial-tracking=()";

fn head(title: &str, base: &str) -> String {
    let mut head = format!("<title>{}</title>\n", escaped(title));
    head += &format!("<script src=\"{base}/{}\"></script>\n", assets::BEFORE_PAINT);
    head += &format!("<link rel=\"stylesheet\" href=\"{base}/style.css\">\n");
    let is_module = |name: &&&str| name.ends_with(".js") && **name != assets::BEFORE_PAINT;
    for name in assets::AT_START.iter().filter(is_module) {
        head += &format!("<link rel=\"modulepreload\" href=\"{base}/{name}\">\n");
    }
    head + &format!("<script type=\"module\" src=\"{base}/shell.js\"></script>")
}

#[derive(Serialize)]
struct Manifest<'a> {
    name: &'a str,
    start_url: &'static str,
    display: &'static str,
    background_color: &'static str,
    theme_color: &'static str,
    icons: [Icon; 1],
}

#[derive(Serialize)]
struct Icon {
    src: String,
    sizes: &'static str,
    r#type: &'static str,
}

/// The manifest by which a browser offers to install the page.
fn manifest(title: &str) -> Vec<u8> {
    let src = format!("{}/{}", assets::base(), assets::ICON);
    let manifest = Manifest {
        name: title,
        start_url: "/",
        display: "standalone",
        background_color: "#faf9f7",
        theme_color: "#0d655d",
        icons: [Icon { src, sizes: "any", r#type: "image/svg+xml" }],
    };
    // Plain structs of strings: this cannot fail.
    serde_json::to_vec(&manifest).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

fn policy(media_origins: &[String]) -> String {
    // Settings are checked elsewhere; what could end the directive is still not taken.
    let harmless = |origin: &&String| {
        !origin.is_empty()
            && origin.bytes().all(|byte| byte.is_ascii_graphic() && !b";,'\"".contains(&byte))
    };
    let media: String =
        media_origins.iter().filter(harmless).map(|origin| format!(" {origin}")).collect();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
         media-src 'self' blob:{media}; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
}

fn nothing_here() -> Answer {
    let answer = answer::bytes_of(StatusCode::NOT_FOUND, HTML, NOTHING_HERE.into());
    let headers = [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, NOTHING),
        (CACHE_CONTROL, "no-store"),
    ];
    answer::with(answer, headers)
}

#[cfg(test)]
mod tests;
