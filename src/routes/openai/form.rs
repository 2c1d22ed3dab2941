//! Reads a form (`multipart/form-data`) that is in memory already, within the bounds of its endpoint.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use multer::Multipart;

use crate::problem::{MALFORMED_REQUEST, Problem};
use crate::validate::openai::Input;

/// More fields than any endpoint has.
const MOST_FIELDS: usize = 64;

/// The form's fields in their order; `None` where the body is no form.
///
/// # Errors
/// `malformed_request`: it cannot be read.
pub(super) async fn fields(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Option<Vec<(String, Input)>>, Problem> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default();
    let is_json = media_type
        .trim_start()
        .get(..16)
        .is_some_and(|start| start.eq_ignore_ascii_case("application/json"));
    if is_json {
        return Ok(None);
    }
    let boundary = multer::parse_boundary(media_type)
        .map_err(|_| malformed("expected a boundary in the form's Content-Type"))?;
    let whole = body.clone();
    let mut form = Multipart::new(stream::once(async { Ok::<_, Infallible>(whole) }), boundary);
    let mut fields = Vec::new();
    while let Some(field) = form.next_field().await.map_err(unreadable)? {
        if fields.len() == MOST_FIELDS {
            return Err(malformed("expected at most 64 fields"));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let input = match field.file_name() {
            Some(_) => {
                field.bytes().await.map_err(unreadable)?;
                Input::File
            }
            None => {
                let bytes = field.bytes().await.map_err(unreadable)?;
                let text = String::from_utf8(bytes.into());
                Input::Text(text.map_err(|_| malformed("expected UTF-8 in the form's fields"))?)
            }
        };
        fields.push((name, input));
    }
    Ok(Some(fields))
}

fn unreadable(_error: multer::Error) -> Problem {
    malformed("the form cannot be read: a part is cut off, or its head is malformed")
}

fn malformed(expected: &'static str) -> Problem {
    Problem::new(&MALFORMED_REQUEST).detail(expected)
}
