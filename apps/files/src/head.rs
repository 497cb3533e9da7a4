//! How a response begins (RFC 9112, 4 and 5).

use alloc::format;
use alloc::string::String;

/// What follows a response's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A file, of that many bytes.
    File(u64),
    /// Text, of that many bytes.
    Text(usize),
}

/// The head of a response: "200 OK", and what follows. The connection is closed behind it.
pub fn head(status: &str, body: Body) -> String {
    let (kind, len) = match body {
        Body::File(len) => ("application/octet-stream", len),
        Body::Text(len) => ("text/plain; charset=utf-8", len as u64),
    };
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")
}
