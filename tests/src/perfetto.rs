//! A reader of Perfetto traces, for what `isola trace` writes. It reads the bytes by the encoding of protocol buffers and
//! the numbers in Perfetto's documentation, and shares no code with the writer.

use std::collections::HashMap;

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfettoTrace {
    /// The name of the process.
    pub process: String,
    /// The time of day at time 0, in ns since 1970-01-01 UTC.
    pub unix_ns_at_zero: u64,
    /// The names of the tracks.
    pub tracks: Vec<String>,
    /// The slices, in the order of their beginnings in the file.
    pub slices: Vec<Slice>,
    /// Values of counters: the track's name, the time in ns, and the value.
    pub counters: Vec<(String, u64, u64)>,
}

/// A slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The name of the track.
    pub track: String,
    /// The slice's name.
    pub name: String,
    /// Its category.
    pub category: String,
    /// Its start, in ns.
    pub start_ns: u64,
    /// Its end, in ns.
    pub end_ns: u64,
    /// The number of slices around it.
    pub depth: usize,
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Interned strings, by kind and number.
type Strings = HashMap<(u64, u64), String>;

/// The kinds of interned strings, by their fields in `InternedData`.
const CATEGORIES: u64 = 1;
const NAMES: u64 = 2;

/// Reads a trace.
///
/// # Errors
/// A description of the first byte sequence that is no trace.
pub fn parse(bytes: &[u8]) -> Result<PerfettoTrace, String> {
    let (mut trace, mut tracks, mut strings) = (PerfettoTrace::default(), HashMap::new(), Strings::new());
    // By track, the indices of the open slices.
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    for (number, packet) in messages(bytes)? {
        if number != 1 {
            return Err(format!("field {number} in a trace"));
        }
        let packet = fields(packet)?;
        for (_, snapshot) in packet.iter().filter(|(number, _)| *number == 6) {
            for (_, clock) in messages(bytes_of(snapshot)?)? {
                let clock = fields(clock)?;
                if number_in(&clock, 1) == Some(1) {
                    trace.unix_ns_at_zero = number_in(&clock, 2).ok_or("a clock without a reading")?;
                }
            }
        }
        if let Some(track) = bytes_in(&packet, 60) {
            let track = fields(track)?;
            let uuid = number_in(&track, 1).ok_or("a track without an id")?;
            if let Some(process) = bytes_in(&track, 3) {
                trace.process = text(bytes_in(&fields(process)?, 6).ok_or("a process without a name")?)?;
            }
            if let Some(name) = bytes_in(&track, 2) {
                trace.tracks.push(text(name)?);
                tracks.insert(uuid, text(name)?);
            }
        }
        if let Some(interned) = bytes_in(&packet, 12) {
            for (kind, entry) in messages(interned)? {
                let entry = fields(entry)?;
                let iid = number_in(&entry, 1)
                    .filter(|iid| *iid != 0)
                    .ok_or("an interned string without a number")?;
                strings.insert((kind, iid), text(bytes_in(&entry, 2).ok_or("a number without a string")?)?);
            }
        }
        let Some(event) = bytes_in(&packet, 11) else { continue };
        let event = fields(event)?;
        let time = number_in(&packet, 8).ok_or("an event without a time")?;
        let uuid = number_in(&event, 11).ok_or("an event without a track")?;
        let track = tracks.get(&uuid).ok_or("an event on an unknown track")?.clone();
        let open = open.entry(uuid).or_default();
        match number_in(&event, 9) {
            Some(1) => {
                let interned = |kind, field| {
                    let iid = number_in(&event, field).unwrap_or(0);
                    strings.get(&(kind, iid)).cloned().unwrap_or_default()
                };
                let (name, category) = (interned(NAMES, 10), interned(CATEGORIES, 3));
                if name.is_empty() {
                    return Err("a slice without a name".to_owned());
                }
                let depth = open.len();
                open.push(trace.slices.len());
                trace.slices.push(Slice { track, name, category, start_ns: time, end_ns: time, depth });
            }
            Some(2) => {
                let begun = open.pop().ok_or("the end of a slice that has not begun")?;
                trace.slices[begun].end_ns = time;
            }
            Some(4) => {
                let value = number_in(&event, 30).ok_or("a counter without a value")?;
                trace.counters.push((track, time, value));
            }
            kind => return Err(format!("an event of the type {kind:?}")),
        }
    }
    match open.values().all(Vec::is_empty) {
        true => Ok(trace),
        false => Err("a slice without an end".to_owned()),
    }
}

/// Returns the fields of a message that has messages only.
fn messages(bytes: &[u8]) -> Result<Vec<(u64, &[u8])>, String> {
    fields(bytes)?.into_iter().map(|(number, field)| Ok((number, bytes_of(&field)?))).collect()
}

/// Returns the fields of a message.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Field<'_>)>, String> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let len = varint(&mut bytes)? as usize;
                let (field, rest) = bytes.split_at_checked(len).ok_or("a field beyond the end")?;
                bytes = rest;
                Field::Bytes(field)
            }
            kind => return Err(format!("a field of the wire type {kind}")),
        };
        fields.push((key >> 3, field));
    }
    Ok(fields)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("a number beyond the end")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number of more than 64 bits".to_owned())
}

fn bytes_of<'a>(field: &Field<'a>) -> Result<&'a [u8], String> {
    match field {
        Field::Bytes(bytes) => Ok(bytes),
        Field::Number(number) => Err(format!("the number {number} instead of a message")),
    }
}

fn bytes_in<'a>(message: &[(u64, Field<'a>)], number: u64) -> Option<&'a [u8]> {
    let (_, field) = message.iter().find(|(found, _)| *found == number)?;
    bytes_of(field).ok()
}

fn number_in(message: &[(u64, Field<'_>)], number: u64) -> Option<u64> {
    match message.iter().find(|(found, _)| *found == number)? {
        (_, Field::Number(value)) => Some(*value),
        (_, Field::Bytes(_)) => None,
    }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}
