//! Serves the built-in page, or the site in `page.dir`, at all paths that are no endpoints.

pub mod assets;
pub mod file;
pub mod site;

use std::collections::HashMap;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use self::file::{REVALIDATE, StaticFile, header_map};
use self::site::{Site, is_navigation};
use super::HandlerContext;
use crate::gate::problem::{self, Problem};
use crate::gate::response::{self, HandlerResult, Response};

pub enum Page {
    /// The files with fixed paths; all others are in [`assets`].
    BuiltIn(HashMap<&'static str, StaticFile>),
    Site(Box<Site>),
}

/// `prefix` is `server.prefix`.
pub(super) async fn answer(page: Option<&Page>, head: &Parts, prefix: &str) -> HandlerResult {
    match page {
        Some(page) => page.answer(head, prefix).await,
        None => Err(Problem::new(&problem::NOT_FOUND)),
    }
}

/// Answers with a file for other sites.
pub(super) async fn shared_file(cx: HandlerContext) -> HandlerResult {
    assets::answer(&cx.call.head).ok_or_else(|| Problem::new(&problem::NOT_FOUND))
}

impl Page {
    /// Renders the built-in page, which may also play videos from `media_origins`.
    pub fn built_in(title: &str, media_origins: &[String]) -> Self {
        let markup = assets::INDEX.replacen(PLACEHOLDER, &head_html(title, &relative_base()), 1);
        let mut headers = header_map([
            (CACHE_CONTROL, REVALIDATE),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("permissions-policy"), PERMISSIONS_POLICY),
        ]);
        let policy = HeaderValue::try_from(content_security_policy(media_origins));
        let policy = policy.unwrap_or(HeaderValue::from_static(DENY_ALL_CSP));
        headers.insert(CONTENT_SECURITY_POLICY, policy);
        let plain = header_map([(CACHE_CONTROL, REVALIDATE), (X_CONTENT_TYPE_OPTIONS, "nosniff")]);
        let manifest = StaticFile::rendered(manifest(title).into(), MANIFEST, &plain);
        let index = StaticFile::rendered(markup.into(), HTML, &headers);
        let files = [("/", index), ("/manifest.webmanifest", manifest)].into_iter();
        // Browsers ask for an icon wherever no page names one, such as beside a JSON document.
        let icon = assets::icon(&plain).map(|icon| ("/favicon.ico", icon));
        Self::BuiltIn(files.chain(icon).collect())
    }

    async fn answer(&self, head: &Parts, prefix: &str) -> HandlerResult {
        let found = match self {
            Self::BuiltIn(files) => match files.get(head.uri.path()) {
                Some(file) => Some(file.response(&head.method, &head.headers)),
                None => assets::answer(head),
            },
            Self::Site(site) => site.answer(head).await?,
        };
        match found {
            Some(mut response) => {
                if let Some(Ok(path)) = response.headers().get(LOCATION).map(HeaderValue::to_str)
                    && let Ok(location) = HeaderValue::try_from(format!("{prefix}{path}"))
                {
                    response.headers_mut().insert(LOCATION, location);
                }
                Ok(response)
            }
            None if is_navigation(&head.headers) => Ok(not_found_page(prefix)),
            None => Err(Problem::new(&problem::NOT_FOUND)),
        }
    }
}

const PLACEHOLDER: &str = "{{head}}";
const HTML: &str = "text/html; charset=utf-8";
const MANIFEST: &str = "application/manifest+json";
const NOT_FOUND_HTML: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
    <title>Nothing here</title><h1>There is nothing at this address</h1>\
    <p><a href=\"{{prefix}}/\">Go to the start page</a></p></html>\n";

/// Denies all browser features that the page does not use.
const PERMISSIONS_POLICY: &str = "accelerometer=(), autoplay=(self), camera=(), clipboard-write=(self), \
    display-capture=(), encrypted-media=(), fullscreen=(self), geolocation=(), gyroscope=(), \
    magnetometer=(), microphone=(), midi=(), payment=(), picture-in-picture=(self), \
    publickey-credentials-get=(), screen-wake-lock=(), usb=(), xr-spatial-tracking=()";

/// The page may be below a path prefix that a server in front of tollgate strips.
fn relative_base() -> String {
    format!(".{}", assets::base_path())
}

fn head_html(title: &str, base: &str) -> String {
    let mut head = format!("<title>{}</title>\n", escape_html(title));
    head += &format!("<script src=\"{base}/{}\"></script>\n", assets::THEME_SCRIPT);
    head += &format!("<link rel=\"stylesheet\" href=\"{base}/style.css\">\n");
    let is_module = |name: &&&str| name.ends_with(".js") && **name != assets::THEME_SCRIPT;
    for name in assets::PRELOADED.iter().filter(is_module) {
        head += &format!("<link rel=\"modulepreload\" href=\"{base}/{name}\">\n");
    }
    head + &format!("<script type=\"module\" src=\"{base}/shell.js\"></script>")
}

/// The manifest by which a browser offers to install the page.
fn manifest(title: &str) -> String {
    let icon = format!("{}/{}", relative_base(), assets::ICON);
    let manifest = json!({
        "name": title,
        "start_url": "./",
        "display": "standalone",
        "background_color": "#faf9f7",
        "theme_color": "#0d655d",
        "icons": [{ "src": icon, "sizes": "any", "type": "image/svg+xml" }],
    });
    manifest.to_string()
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const DENY_ALL_CSP: &str = "default-src 'none'; frame-ancestors 'none'";

fn content_security_policy(media_origins: &[String]) -> String {
    // Settings are validated already; this only excludes what could end the directive.
    let harmless = |origin: &&String| {
        !origin.is_empty()
            && origin.bytes().all(|byte| byte.is_ascii_graphic() && !b";,'\"".contains(&byte))
    };
    let media: String =
        media_origins.iter().filter(harmless).map(|origin| format!(" {origin}")).collect();
    format!(
        "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
         media-src 'self' blob:{media}; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types tollgate-proof"
    )
}

fn not_found_page(prefix: &str) -> Response {
    let html = NOT_FOUND_HTML.replacen("{{prefix}}", prefix, 1);
    let response = response::from_bytes(StatusCode::NOT_FOUND, HTML, html.into());
    let headers = [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, DENY_ALL_CSP),
        (CACHE_CONTROL, "no-store"),
    ];
    response::with_headers(response, headers)
}

#[cfg(test)]
mod tests;
