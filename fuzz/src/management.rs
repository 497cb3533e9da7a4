//! The management protocol: frames of the console, descriptors, queries and their answers.

use isola_abi::descriptor::Descriptor;
use isola_abi::frame::{Decoder, encode};
use isola_abi::management::{Request, Response};
use isola_abi::query::{AnswerRecord, FrameHead, ProfileRecord, Query, TraceRecord};
use isola_host::profile::folded::{Grouping, folded};
use isola_host::profile::named::NamedProfile;
use isola_host::profile::{Profile, speedscope};
use isola_host::trace::TraceSummary;
use isola_host::trace::file::TraceFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Decodes frames from a stream. A message must survive encoding and another decoding.
fn frames<T: Serialize + DeserializeOwned + PartialEq + Debug>(mut bytes: &[u8]) {
    let mut decoder = Decoder::new();
    while let Some(message) = decoder.next::<T>(&mut bytes) {
        let Ok(message) = message else { continue };
        let again = encode(&message).expect("a message that came in a frame fits in a frame");
        assert_eq!(Decoder::new().next::<T>(&mut &again[..]), Some(Ok(message)));
    }
}

/// Decodes the host tool's requests, as the supervisor does.
pub fn requests(bytes: &[u8]) {
    frames::<Request>(bytes);
}

/// Decodes the supervisor's responses, as the host tool does.
pub fn responses(bytes: &[u8]) {
    frames::<Response>(bytes);
}

/// Decodes a descriptor, as a cell and a restarted supervisor do.
pub fn descriptor(bytes: &[u8]) {
    let Ok(descriptor) = Descriptor::decode(bytes) else { return };
    let encoded = descriptor.encode().expect("a descriptor that was decoded fits");
    assert_eq!(Descriptor::decode(&encoded), Ok(descriptor));
}

/// Decodes a query, as a cell does, and the answer to a query, as the host tool does.
pub fn facts(bytes: &[u8]) {
    if let Some(query) = Query::decode(bytes) {
        assert_eq!(Query::decode(&query.encode()), Some(query));
    }
    if let Ok(fact) = AnswerRecord::decode(bytes) {
        assert_eq!(AnswerRecord::decode(&fact.encode()), Ok(fact));
    }
    if let Ok((head, rest)) = FrameHead::decode(bytes) {
        assert!(rest.len() < bytes.len());
        let mut buffer = [0; FrameHead::MAX_ENCODED];
        assert_eq!(FrameHead::decode(head.encode(&mut buffer)), Ok((head, &[][..])));
    }
    if let Ok(record) = ProfileRecord::decode(bytes) {
        assert_eq!(ProfileRecord::decode(&record.encode()), Ok(record.clone()));
        let mut profile = Profile::default();
        profile.add(&record);
        let named = NamedProfile::new(&profile, None);
        assert_eq!(named.samples(), profile.busy());
        let lines = folded(&named, Grouping::ByAccount);
        assert!(
            lines
                .lines()
                .all(|line| line.rsplit_once(' ').is_some_and(|(_, count)| count.parse::<u64>().is_ok()))
        );
        assert!(speedscope::file("cell", &named, Grouping::None).is_ok());
    }
    if let Ok(record) = TraceRecord::decode(bytes) {
        assert_eq!(TraceRecord::decode(&record.encode()), Ok(record.clone()));
        TraceSummary::default().add(&record);
        let mut file = TraceFile::begin("cell");
        if file.add(&record).is_ok() {
            file.take();
        }
    }
}
