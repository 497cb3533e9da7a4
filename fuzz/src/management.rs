//! The management protocol: frames of the console, descriptors, and facts that a cell reports.

use isola_abi::descriptor::Descriptor;
use isola_abi::frame::{Decoder, encode};
use isola_abi::management::{Request, Response};
use isola_abi::query::{Fact, FrameHead, Query};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Reads frames out of a stream; a message reads the same after it was encoded again.
fn frames<T: Serialize + DeserializeOwned + PartialEq + Debug>(mut bytes: &[u8]) {
    let mut decoder = Decoder::new();
    while let Some(message) = decoder.next::<T>(&mut bytes) {
        let Ok(message) = message else { continue };
        let again = encode(&message).expect("a message that came in a frame fits in a frame");
        assert_eq!(Decoder::new().next::<T>(&mut &again[..]), Some(Ok(message)));
    }
}

/// The supervisor reads the host tool's requests.
pub fn requests(bytes: &[u8]) {
    frames::<Request>(bytes);
}

/// The host tool reads the supervisor's responses.
pub fn responses(bytes: &[u8]) {
    frames::<Response>(bytes);
}

/// A cell, and a restarted supervisor, read a descriptor.
pub fn descriptor(bytes: &[u8]) {
    let Ok(descriptor) = Descriptor::decode(bytes) else { return };
    let encoded = descriptor.encode().expect("a descriptor that was decoded fits");
    assert_eq!(Descriptor::decode(&encoded), Ok(descriptor));
}

/// The supervisor and the host tool read what a cell answers to a query; a cell reads the query.
pub fn facts(bytes: &[u8]) {
    if let Some(query) = Query::decode(bytes) {
        assert_eq!(Query::decode(&query.encode()), Some(query));
    }
    if let Ok(fact) = Fact::decode(bytes) {
        assert_eq!(Fact::decode(&fact.encode()), Ok(fact));
    }
    if let Ok((head, rest)) = FrameHead::decode(bytes) {
        assert!(rest.len() < bytes.len());
        let mut buffer = [0; FrameHead::MAX_ENCODED];
        assert_eq!(FrameHead::decode(head.encode(&mut buffer)), Ok((head, &[][..])));
    }
}
