//! The settings that `set` changes.

use super::parse::time;
use isola_net_stack::{Algorithm, Config};
use std::str::FromStr;

/// Changes the setting `name` of `config`.
pub fn set(config: &mut Config, name: &str, value: &str) -> Result<(), String> {
    fn number<N: FromStr>(value: &str) -> Result<N, String> {
        value.parse().map_err(|_| format!("{value} is no number"))
    }
    let (tcp, limits) = (&mut config.tcp, &mut config.limits);
    match name {
        "mtu" => config.mtu = number(value)?,
        "receive_window" => tcp.receive_window = number(value)?,
        "max_receive_window" => tcp.max_receive_window = number(value)?,
        "send_limit" => tcp.send_limit = number(value)?,
        "max_half_open" => tcp.max_half_open = number(value)?,
        "max_time_wait" => tcp.max_time_wait = number(value)?,
        "max_connections" => tcp.max_connections = number(value)?,
        "max_retransmits" => tcp.max_retransmits = number(value)?,
        "max_syn_retransmits" => tcp.max_syn_retransmits = number(value)?,
        "reassembly_pieces" => tcp.reassembly_pieces = number(value)?,
        "delayed_ack" => tcp.delayed_ack = time(value)?,
        "rto_initial" => tcp.rto_initial = time(value)?,
        "rto_min" => tcp.rto_min = time(value)?,
        "rto_max" => tcp.rto_max = time(value)?,
        "time_wait" => tcp.time_wait = time(value)?,
        "fin_wait_2" => tcp.fin_wait_2 = time(value)?,
        "congestion" => {
            tcp.congestion = match value {
                "newreno" => Algorithm::NewReno,
                "cubic" => Algorithm::Cubic,
                other => return Err(format!("{other} is neither newreno nor cubic")),
            }
        }
        "challenges_per_second" => limits.challenges_per_second = number(value)?,
        "resets_per_second" => limits.resets_per_second = number(value)?,
        other => return Err(format!("{other} is no setting that scripts know")),
    }
    Ok(())
}
