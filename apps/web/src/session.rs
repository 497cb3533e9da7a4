//! A connection without its socket: bytes of requests in, views of responses out.

use crate::condition::{self, Outcome};
use crate::head::{Head, Method, Parsed, Persistence, Refusal};
use crate::range::{self, RangeRequest};
use crate::requests::Requests;
use crate::response::{Prefaces, Status};
use crate::site::{File, Site, SiteEntry};
use alloc::borrow::Cow;
use alloc::format;
use isola_iobuf::{Chain, IoBuf};
use percent_encoding::percent_decode_str;

/// The amount of output, in bytes, at which the session serves no further request. A client that does not read thus has
/// at most one response beyond it queued, as views of the site.
const ENOUGH_OUTPUT: usize = 64 << 10;

/// A client's side of a connection.
#[derive(Debug, Default)]
pub struct Session {
    requests: Requests,
    output: Chain,
    served: u64,
    /// Whether the session answers nothing more.
    ends: bool,
}

impl Session {
    /// Creates a session without input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes received data.
    pub fn receive(&mut self, data: Chain) {
        if !self.ends {
            self.requests.receive(data);
        }
    }

    /// Serves the received requests while the output has room. Returns whether all were served; otherwise call it again
    /// after output was taken.
    pub fn serve(&mut self, site: &Site, prefaces: &Prefaces) -> bool {
        while !self.ends && self.is_within_request() {
            if self.output.len() >= ENOUGH_OUTPUT {
                return false;
            }
            let Self { requests, output, served, ends } = self;
            let mut answer = Answer { output, site, prefaces, ends };
            if requests.next(|parsed| answer.parsed(parsed)).is_none() {
                break;
            }
            *served += 1;
        }
        true
    }

    /// Ends the session after a timeout. If a request has begun, answers it with 408.
    pub fn time_out(&mut self, prefaces: &Prefaces) {
        if self.is_within_request() {
            self.refuse(Status::RequestTimeout, prefaces);
        }
        self.ends = true;
    }

    /// Answers with 503, as there are too many connections, and ends the session.
    pub fn reject(&mut self, prefaces: &Prefaces) {
        self.refuse(Status::ServiceUnavailable, prefaces);
    }

    fn refuse(&mut self, status: Status, prefaces: &Prefaces) {
        let text = page(prefaces, status, Persistence::Close, Method::Get, "");
        self.output.push_back(text);
        self.ends = true;
    }

    /// Takes up to `most` bytes of output.
    pub fn take_output(&mut self, most: usize) -> Chain {
        let count = self.output.len().min(most);
        if count == self.output.len() {
            return core::mem::take(&mut self.output);
        }
        self.output.split_to(count).unwrap_or_default()
    }

    /// Returns whether there is output to take.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns whether the session answers nothing more.
    pub fn has_ended(&self) -> bool {
        self.ends
    }

    /// Returns whether a request has begun and is not complete.
    pub fn is_within_request(&self) -> bool {
        self.requests.has_begun()
    }

    /// Returns the number of served requests.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Returns the memory that the session holds, in bytes, without the memory of the site.
    pub fn held_bytes(&self) -> usize {
        self.requests.held_bytes()
    }
}

/// The destination and the sources of a response.
struct Answer<'a> {
    output: &'a mut Chain,
    site: &'a Site,
    prefaces: &'a Prefaces,
    ends: &'a mut bool,
}

impl Answer<'_> {
    /// Answers a parsed request.
    #[inline]
    fn parsed(&mut self, parsed: Parsed<'_>) {
        let persistence = match parsed {
            // Never passed.
            Parsed::Incomplete => return,
            Parsed::Request(head, _) => {
                self.request(&head);
                head.persistence
            }
            Parsed::Refused(refusal, _) => {
                self.output.push_back(refused(self.prefaces, &refusal));
                refusal.persistence
            }
        };
        *self.ends = persistence == Persistence::Close;
    }

    fn request(&mut self, head: &Head<'_>) {
        let path = head.target.split(['?', '#']).next().unwrap_or_default();
        // Borrows a path without escapes.
        let decoded: Cow<'_, [u8]> = percent_decode_str(path).into();
        match self.site.find(&decoded) {
            Some(SiteEntry::File(file)) => self.file(head, file),
            Some(SiteEntry::Directory) => {
                let fields = format!("Location: {path}/\r\n");
                self.page(Status::MovedPermanently, head.persistence, head.method, &fields);
            }
            None => self.not_found(head),
        }
    }

    fn file(&mut self, head: &Head<'_>, file: &File) {
        match condition::evaluate(head, file) {
            Outcome::Send => {}
            Outcome::NotModified => {
                let preface = self.prefaces.of(Status::NotModified, head.persistence);
                self.output.push_back(text(&format!("{preface}{}\r\n", file.validators())));
                return;
            }
            Outcome::Failed => {
                return self.page(Status::PreconditionFailed, head.persistence, head.method, "");
            }
        }
        // A range does not apply to HEAD (RFC 9110, 14.2).
        let range = head.range.filter(|_| head.method == Method::Get && condition::range_applies(head, file));
        let len = file.content().len();
        match range.map_or(RangeRequest::Whole, |range| range::requested(range, len)) {
            RangeRequest::Whole => {
                let whole = (head.method == Method::Get)
                    .then(|| self.prefaces.response(file, head.persistence))
                    .flatten();
                if let Some(response) = whole {
                    self.output.push_back(response);
                    return;
                }
                self.output.push_back(self.prefaces.of_file(head.persistence));
                match head.method {
                    Method::Get => file.append_to(self.output),
                    Method::Head => self.output.push_back(file.fields()),
                }
            }
            RangeRequest::Part(part) => {
                let preface = self.prefaces.of(Status::PartialContent, head.persistence);
                self.output.push_back(text(&format!(
                    "{preface}Content-Type: {}\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{len}\r\n{}\r\n",
                    file.media(),
                    part.len(),
                    part.start,
                    part.end - 1,
                    file.validators()
                )));
                self.output.push_back(file.content().slice(part).unwrap_or_else(|| IoBuf::from_static(&[])));
            }
            RangeRequest::Unsatisfiable => {
                let fields = format!("Content-Range: bytes */{len}\r\n");
                self.page(Status::RangeNotSatisfiable, head.persistence, head.method, &fields);
            }
        }
    }

    fn not_found(&mut self, head: &Head<'_>) {
        let Some(own) = self.site.not_found() else {
            return self.page(Status::NotFound, head.persistence, head.method, "");
        };
        let preface = self.prefaces.of(Status::NotFound, head.persistence);
        let (media, len) = (own.media(), own.content().len());
        self.output
            .push_back(text(&format!("{preface}Content-Type: {media}\r\nContent-Length: {len}\r\n\r\n")));
        if head.method == Method::Get {
            self.output.push_back(own.content().clone());
        }
    }

    fn page(&mut self, status: Status, persistence: Persistence, method: Method, fields: &str) {
        self.output.push_back(page(self.prefaces, status, persistence, method, fields));
    }
}

/// Returns the response to a request that was rejected.
pub(crate) fn refused(prefaces: &Prefaces, refusal: &Refusal) -> IoBuf {
    let allow = "Allow: GET, HEAD\r\n";
    let fields = if refusal.status == Status::MethodNotAllowed { allow } else { "" };
    page(prefaces, refusal.status, refusal.persistence, refusal.method, fields)
}

/// Returns a response whose page shows the status only.
pub(crate) fn page(
    prefaces: &Prefaces,
    status: Status,
    persistence: Persistence,
    method: Method,
    fields: &str,
) -> IoBuf {
    let preface = prefaces.of(status, persistence);
    let page = status.page();
    let len = page.len();
    let body = if method == Method::Get { page.as_str() } else { "" };
    text(&format!(
        "{preface}{fields}Content-Type: text/html; charset=utf-8\r\nContent-Length: {len}\r\n\r\n{body}"
    ))
}

pub(crate) fn text(text: &str) -> IoBuf {
    IoBuf::copy_from_slice(text.as_bytes())
}
