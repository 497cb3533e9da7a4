//! The command `stats`.

use crate::number::parse_u32;
use crate::protocol::{Action, Parsed, Reply};
use crate::request::Broadcast;
use crate::stats::StatsKind;

use super::command::{Arguments, BAD_FORMAT, ERROR, Noreply, literal};
use super::reply::TextReply;

const DETAIL_USAGE: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
const BAD_COMMAND: &[u8] = b"CLIENT_ERROR bad command line\r\n";

/// The largest number of items that `stats cachedump` lists, so that one request does not list all items of the server.
const MOST_LISTED: usize = 200;

/// Parses the words that follow the name.
pub(super) fn read_line(arguments: &Arguments<'_>) -> Parsed {
    let all = |broadcast, reply| Parsed { action: Action::All(broadcast), reply: Reply::Text(reply) };
    match arguments.get(0) {
        b"reset" => all(Broadcast::ResetStats, TextReply::Reset),
        b"detail" => match arguments.get(1) {
            b"on" => all(Broadcast::CountPrefixes(true), TextReply::Status),
            b"off" => all(Broadcast::CountPrefixes(false), TextReply::Status),
            b"dump" => all(Broadcast::PrefixStats, TextReply::Prefixes),
            _ => literal(DETAIL_USAGE, Noreply::No),
        },
        b"cachedump" if arguments.count < 3 => literal(BAD_COMMAND, Noreply::No),
        b"cachedump" => match (parse_u32(arguments.get(1)), parse_u32(arguments.get(2))) {
            (Some(class), Some(limit)) => {
                let limit = match (class, limit as usize) {
                    (1, 0) => MOST_LISTED,
                    (1, limit) => limit.min(MOST_LISTED),
                    // All items are of one class.
                    _ => 0,
                };
                all(Broadcast::List { limit }, TextReply::List { limit })
            }
            _ => literal(BAD_FORMAT, Noreply::No),
        },
        name => match StatsKind::of(name) {
            Some(kind) => all(Broadcast::Stats, TextReply::Stats(kind)),
            None => literal(ERROR, Noreply::No),
        },
    }
}
