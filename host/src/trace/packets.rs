//! The part of Perfetto's trace format that [`file`](mod@super::file) writes: its messages and fields by their numbers,
//! with `prost` for the encoding.
//!
//! The source is `protos/perfetto/trace/perfetto_trace.proto` of Perfetto 59. Numbers and meanings in it are stable.

use prost::Message;

/// The built-in clocks of a [`ClockSnapshot`].
pub const REALTIME: u32 = 1;
/// The clock of timestamps without a clock.
pub const BOOTTIME: u32 = 6;

/// The packet forgets the interned data of its sequence.
pub const INCREMENTAL_STATE_CLEARED: u32 = 1;
/// The packet refers to interned data.
pub const NEEDS_INCREMENTAL_STATE: u32 = 2;

/// The types of a [`TrackEvent`].
pub const SLICE_BEGIN: i32 = 1;
/// Ends the last slice on the track.
pub const SLICE_END: i32 = 2;
/// Sets a counter.
pub const COUNTER: i32 = 4;

/// The children of a track are in the order of their ranks.
pub const EXPLICIT_ORDER: i32 = 3;

/// A trace. The concatenation of two is a trace.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Its packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// A packet.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Readings of several clocks at one time.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// The time, in ns.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence of packets that share interned data.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// An event on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Strings to which this packet and later ones refer.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// Flags of the sequence.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// A track.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// Readings of several clocks at one time.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// The readings.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// A reading of a clock.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// The clock.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// The reading, in ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its id.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process, if it is a process's track.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// The track above it.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// The counter, if it is a counter's track.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// The order of its children.
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its place among its siblings.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its id.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

/// A counter.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// The name of its unit.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// An event on a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// The interned categories.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Arguments.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// The type.
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    /// The interned name.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// The track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// The value of a counter.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    /// The interned source location.
    #[prost(uint64, optional, tag = "34")]
    pub source_location_iid: Option<u64>,
}

/// An argument.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// Its value.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

/// Interned strings.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// Categories.
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<InternedName>,
    /// Names of events.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<InternedName>,
    /// Source locations.
    #[prost(message, repeated, tag = "4")]
    pub source_locations: Vec<SourceLocation>,
}

/// An interned string.
#[derive(Clone, PartialEq, Message)]
pub struct InternedName {
    /// Its number, not 0.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The string.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// An interned source location.
#[derive(Clone, PartialEq, Message)]
pub struct SourceLocation {
    /// Its number, not 0.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The file.
    #[prost(string, optional, tag = "2")]
    pub file_name: Option<String>,
    /// The line.
    #[prost(uint32, optional, tag = "4")]
    pub line_number: Option<u32>,
}
