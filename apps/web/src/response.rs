//! What goes before a file, or stands in its place (RFC 9110, 15; RFC 9112, 4).

use crate::date::{self, UnixSeconds};
use crate::head::Persistence;
use alloc::format;
use alloc::string::String;
use isola_iobuf::IoBuf;

/// The statuses that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their phrases say what they are")]
pub enum Status {
    Ok,
    PartialContent,
    MovedPermanently,
    NotModified,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    PreconditionFailed,
    ContentTooLarge,
    TargetTooLong,
    RangeNotSatisfiable,
    ExpectationFailed,
    HeadTooLarge,
    NotImplemented,
    ServiceUnavailable,
    VersionNotSupported,
}

impl Status {
    /// Its number and phrase.
    pub const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::PartialContent => "206 Partial Content",
            Self::MovedPermanently => "301 Moved Permanently",
            Self::NotModified => "304 Not Modified",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::PreconditionFailed => "412 Precondition Failed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::TargetTooLong => "414 URI Too Long",
            Self::RangeNotSatisfiable => "416 Range Not Satisfiable",
            Self::ExpectationFailed => "417 Expectation Failed",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::NotImplemented => "501 Not Implemented",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// A page that says no more than that.
    pub fn page(self) -> String {
        let line = self.line();
        format!("<!doctype html>\n<title>{line}</title>\n<h1>{line}</h1>\n")
    }
}

/// What responses begin with: status, date, and what becomes of the connection. Those of files are made once a second,
/// and shared by all responses of a core.
#[derive(Clone, Debug)]
pub struct Prefaces {
    at: UnixSeconds,
    date: String,
    files: [IoBuf; 3],
}

impl Prefaces {
    /// The prefaces of that time.
    pub fn new(at: UnixSeconds) -> Self {
        let mut text = String::new();
        // A string takes whatever is written.
        let _ = date::write(&mut text, at);
        let all = [Persistence::Stays, Persistence::StaysAndSays, Persistence::Ends];
        let files =
            all.map(|persistence| IoBuf::copy_from_slice(preface(Status::Ok, &text, persistence).as_bytes()));
        Self { at, date: text, files }
    }

    /// Makes them anew where time has gone on, by the second.
    pub fn refresh(&mut self, at: UnixSeconds) {
        if self.at != at {
            *self = Self::new(at);
        }
    }

    /// What a file's response begins with, up to its fields.
    pub fn of_file(&self, persistence: Persistence) -> IoBuf {
        let [stays, says, ends] = &self.files;
        match persistence {
            Persistence::Stays => stays.clone(),
            Persistence::StaysAndSays => says.clone(),
            Persistence::Ends => ends.clone(),
        }
    }

    /// What any other response begins with, up to its fields.
    pub fn of(&self, status: Status, persistence: Persistence) -> String {
        preface(status, &self.date, persistence)
    }
}

fn preface(status: Status, date: &str, persistence: Persistence) -> String {
    let connection = match persistence {
        Persistence::Stays => "",
        Persistence::StaysAndSays => "Connection: keep-alive\r\n",
        Persistence::Ends => "Connection: close\r\n",
    };
    format!("HTTP/1.1 {}\r\nServer: isola\r\nDate: {date}\r\n{connection}", status.line())
}
