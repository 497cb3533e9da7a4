//! HTTP requests and responses of the metrics server: `GET /metrics`, and errors for all others.

use super::series::TextFormat;
use httparse::{EMPTY_HEADER, Error, Request, Status};
use std::fmt::Write;

/// The maximum length of a request's head, in bytes.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// The maximum number of header fields in a request.
const MAX_FIELDS: usize = 64;

/// The path of the metrics.
const PATH: &str = "/metrics";

/// The reasons for a response without metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is malformed.
    Malformed,
    /// The request did not arrive in time.
    Slow,
    /// The method is not GET.
    Method,
    /// The path is not that of the metrics.
    Path,
    /// The head is too long.
    Long,
    /// There are too many connections.
    Busy,
    /// The machine cannot be read.
    Unavailable(String),
}

/// Parses a request. Returns `None` if the head is incomplete so far, and otherwise the format of the metrics that it
/// requests.
pub fn parse(head: &[u8]) -> Option<Result<TextFormat, Refusal>> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Complete(_)) => Some(format_of(&request)),
        Ok(Status::Partial) if head.len() < MAX_HEAD_BYTES => None,
        Ok(Status::Partial) | Err(Error::TooManyHeaders) => Some(Err(Refusal::Long)),
        Err(_) => Some(Err(Refusal::Malformed)),
    }
}

fn format_of(request: &Request<'_, '_>) -> Result<TextFormat, Refusal> {
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if path != PATH {
        return Err(Refusal::Path);
    }
    if request.method != Some("GET") {
        return Err(Refusal::Method);
    }
    // Prometheus prefers OpenMetrics if it accepts it at all; clients without a preference get the older format.
    let accepts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("accept"));
    let mut types = accepts.filter_map(|field| std::str::from_utf8(field.value).ok());
    match types.any(|types| types.to_ascii_lowercase().contains("application/openmetrics-text")) {
        true => Ok(TextFormat::Openmetrics),
        false => Ok(TextFormat::Prometheus),
    }
}

/// Returns the response with metrics.
pub fn response(format: TextFormat, body: &str) -> Vec<u8> {
    encode("200 OK", format.media_type(), "", body)
}

impl Refusal {
    /// Returns the response.
    pub fn response(&self) -> Vec<u8> {
        let (status, text) = match self {
            Self::Malformed => ("400 Bad Request", "this is no HTTP request"),
            Self::Slow => ("408 Request Timeout", "the request did not arrive in time"),
            Self::Method => ("405 Method Not Allowed", "use GET"),
            Self::Path => ("404 Not Found", "the metrics are at /metrics"),
            Self::Long => ("431 Request Header Fields Too Large", "the request's head is too long"),
            Self::Busy => ("503 Service Unavailable", "too many connections"),
            Self::Unavailable(text) => ("503 Service Unavailable", text.as_str()),
        };
        let fields = if *self == Self::Method { "Allow: GET\r\n" } else { "" };
        encode(status, "text/plain; charset=utf-8", fields, &format!("{text}\n"))
    }
}

fn encode(status: &str, media_type: &str, fields: &str, body: &str) -> Vec<u8> {
    let mut text = String::with_capacity(body.len() + 256);
    let _ = write!(
        text,
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{fields}Connection: close\r\n\r\n{body}",
        body.len()
    );
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_get_of_the_metrics_is_served() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", Ok(TextFormat::Prometheus)),
            ("GET /metrics?name=a HTTP/1.0\r\n\r\n", Ok(TextFormat::Prometheus)),
            (&format!("GET /metrics HTTP/1.1\r\naccept: {prometheus}\r\n\r\n"), Ok(TextFormat::Openmetrics)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Err(Refusal::Method)),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", Err(Refusal::Method)),
            ("GET / HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET /../metrics HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET  \r\n\r\n", Err(Refusal::Malformed)),
            ("\x16\x03\x01\x02\x00\x01", Err(Refusal::Malformed)),
        ] {
            assert_eq!(parse(request.as_bytes()), Some(expected), "{request:?}");
        }
    }

    #[test]
    fn a_head_without_an_end_is_rejected_at_its_maximum_length() {
        let head = format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(MAX_HEAD_BYTES));
        assert_eq!(parse(&head.as_bytes()[..MAX_HEAD_BYTES - 1]), None);
        assert_eq!(parse(&head.as_bytes()[..MAX_HEAD_BYTES]), Some(Err(Refusal::Long)));
        let fields = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: a\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(parse(fields.as_bytes()), Some(Err(Refusal::Long)));
    }

    #[test]
    fn responses_have_a_length_and_close_the_connection() {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let method = text(Refusal::Method.response());
        assert!(method.starts_with("HTTP/1.1 405 ") && method.contains("\r\nAllow: GET\r\n"), "{method}");
        let metrics = text(response(TextFormat::Openmetrics, "# EOF\n"));
        assert!(metrics.contains("\r\nContent-Length: 6\r\nConnection: close\r\n\r\n# EOF\n"), "{metrics}");
        assert!(metrics.contains("application/openmetrics-text; version=1.0.0"), "{metrics}");
    }

    proptest! {
        #[test]
        fn any_input_has_an_answer_once_it_is_long_enough(
            begin in prop_oneof![Just(""), Just("GET /metrics HTTP/1.1\r\n"), Just("GET /metrics HTTP/1.1\r\nA: ")],
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut input = [begin.as_bytes(), &rest].concat();
            let _ = parse(&input);
            input.resize(MAX_HEAD_BYTES, b'a');
            prop_assert!(parse(&input).is_some());
        }

        #[test]
        fn a_decision_does_not_depend_on_the_parts_in_which_a_request_arrives(
            words in proptest::collection::vec(
                prop::sample::select(vec![
                    "GET", "POST", " ", "/metrics", "/", "?a", "HTTP/1.1", "HTTP/1", "\r\n", "\r", "\n", "a", ":", "\u{e9}",
                    "Accept: application/openmetrics-text", "\0",
                ]),
                0..16,
            ),
            is_request in any::<bool>(),
        ) {
            let begin = if is_request { "GET /metrics HTTP/1.1\r\n" } else { "" };
            let request = format!("{begin}{}", words.concat()).into_bytes();
            let first = (0..=request.len()).find_map(|len| parse(&request[..len]));
            prop_assert_eq!(first, parse(&request));
        }
    }
}
