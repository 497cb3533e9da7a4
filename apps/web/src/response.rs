//! Status lines, fields and pages of responses (RFC 9110, 15; RFC 9112, 4).

use crate::date::{self, UnixSeconds};
use crate::head::Persistence;
use crate::site::File;
use alloc::format;
use alloc::string::String;
use core::cell::RefCell;
use isola_iobuf::{IoBuf, IoBufMut};

/// The maximum length, in bytes, of fields and content that are copied after their preface: up to it, the copy takes
/// fewer instructions than another view takes in the stack and the device.
const LONGEST_COPIED: usize = 2048;

/// The number of cached whole responses, kept until the second ends. Files whose numbers in their sites differ by a
/// multiple of this share a cache slot.
const CACHED_RESPONSES: usize = 64;

/// The address of a file's fields and content, which is unique to the file, and its whole response.
type CachedResponse = Option<(usize, IoBuf)>;

/// The statuses that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their phrases explain them")]
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
    InternalServerError,
    NotImplemented,
    ServiceUnavailable,
    VersionNotSupported,
}

impl Status {
    /// Returns the code and phrase.
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
            Self::InternalServerError => "500 Internal Server Error",
            Self::NotImplemented => "501 Not Implemented",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// Returns a page with the code and phrase only.
    pub fn page(self) -> String {
        let line = self.line();
        format!("<!doctype html>\n<title>{line}</title>\n<h1>{line}</h1>\n")
    }
}

/// The beginnings of responses: status, date, and connection options. Those of files are created once a second, and
/// shared by all responses of a core.
#[derive(Clone, Debug)]
pub struct Prefaces {
    at: UnixSeconds,
    date: String,
    files: [IoBuf; 3],
    /// Cached whole responses of short files.
    cached: RefCell<[CachedResponse; CACHED_RESPONSES]>,
}

impl Prefaces {
    /// Creates the prefaces for a time.
    pub fn new(at: UnixSeconds) -> Self {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = date::write(&mut text, at);
        let all = [Persistence::KeepAlive, Persistence::AnnouncedKeepAlive, Persistence::Close];
        let files =
            all.map(|persistence| IoBuf::copy_from_slice(preface(Status::Ok, &text, persistence).as_bytes()));
        Self { at, date: text, files, cached: RefCell::new([const { None }; CACHED_RESPONSES]) }
    }

    /// Returns the time.
    pub fn at(&self) -> UnixSeconds {
        self.at
    }

    /// Recreates the prefaces if the second has changed.
    pub fn refresh(&mut self, at: UnixSeconds) {
        if self.at != at {
            *self = Self::new(at);
        }
    }

    /// Returns the beginning of a file's response, up to its fields.
    pub fn of_file(&self, persistence: Persistence) -> IoBuf {
        let [keep_alive, announced, close] = &self.files;
        match persistence {
            Persistence::KeepAlive => keep_alive.clone(),
            Persistence::AnnouncedKeepAlive => announced.clone(),
            Persistence::Close => close.clone(),
        }
    }

    /// Returns the whole response to a `GET` of a short file as one view, or `None` if separate views are cheaper. The
    /// response is cached for a second, for persistent connections only.
    pub fn response(&self, file: &File, persistence: Persistence) -> Option<IoBuf> {
        if persistence != Persistence::KeepAlive {
            return None;
        }
        let whole = file.whole().filter(|whole| whole.len() <= LONGEST_COPIED)?;
        let address = whole.as_ptr().addr();
        let cached = &mut self.cached.borrow_mut()[file.number() % CACHED_RESPONSES];
        if let Some((of, response)) = cached
            && *of == address
        {
            return Some(response.clone());
        }
        let [preface, ..] = &self.files;
        let mut response = IoBufMut::with_room(0, preface.len() + whole.len());
        response.append_slice(preface)?;
        response.append_slice(whole)?;
        let response = response.freeze();
        *cached = Some((address, response.clone()));
        Some(response)
    }

    /// Returns the beginning of any other response, up to its fields.
    pub fn of(&self, status: Status, persistence: Persistence) -> String {
        preface(status, &self.date, persistence)
    }
}

fn preface(status: Status, date: &str, persistence: Persistence) -> String {
    let connection = match persistence {
        Persistence::KeepAlive => "",
        Persistence::AnnouncedKeepAlive => "Connection: keep-alive\r\n",
        Persistence::Close => "Connection: close\r\n",
    };
    format!("HTTP/1.1 {}\r\nServer: isola\r\nDate: {date}\r\n{connection}", status.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::{Site, SiteBuilder, SiteEntry};
    use alloc::vec::Vec;

    fn site(contents: &[&'static [u8]]) -> Site {
        let mut site = SiteBuilder::new(7);
        for (number, content) in contents.iter().enumerate() {
            site.add(&format!("{number}"), content, None).unwrap();
        }
        site.build()
    }

    fn response(prefaces: &Prefaces, site: &Site, name: &str) -> Option<IoBuf> {
        let Some(SiteEntry::File(file)) = site.find(name.as_bytes()) else { panic!("no {name}") };
        prefaces.response(file, Persistence::KeepAlive)
    }

    #[test]
    fn a_short_file_s_response_is_made_once_a_second() {
        let mut prefaces = Prefaces::new(UnixSeconds(0));
        let site = site(&[b"one"]);
        let [first, again] = [(); 2].map(|()| response(&prefaces, &site, "/0").unwrap());
        assert_eq!(first.as_ptr(), again.as_ptr());
        assert!(first.starts_with(prefaces.of(Status::Ok, Persistence::KeepAlive).as_bytes()));
        assert!(first.ends_with(b"\r\n\r\none"));
        prefaces.refresh(UnixSeconds(1));
        let later = response(&prefaces, &site, "/0").unwrap();
        assert!(
            later.starts_with(prefaces.of(Status::Ok, Persistence::KeepAlive).as_bytes()) && later != first
        );
    }

    #[test]
    fn files_that_share_a_cache_slot_have_their_own_responses() {
        let prefaces = Prefaces::new(UnixSeconds(0));
        let contents: Vec<&'static [u8]> =
            (0..=CACHED_RESPONSES).map(|number| &*alloc::vec![number as u8; 9].leak()).collect();
        // Also files of several sites.
        let sites = [site(&contents), site(&[b"other"])];
        let last = format!("/{CACHED_RESPONSES}");
        for _ in 0..2 {
            assert!(response(&prefaces, &sites[0], "/0").unwrap().ends_with(&[0; 9]));
            assert!(response(&prefaces, &sites[0], &last).unwrap().ends_with(&[CACHED_RESPONSES as u8; 9]));
            assert!(response(&prefaces, &sites[1], "/0").unwrap().ends_with(b"other"));
        }
    }

    #[test]
    fn long_files_are_not_copied() {
        let prefaces = Prefaces::new(UnixSeconds(0));
        let content: &'static [u8] = alloc::vec![7; LONGEST_COPIED].leak();
        assert!(response(&prefaces, &site(&[content]), "/0").is_none());
    }
}
