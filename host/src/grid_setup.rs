//! The settings of the resource grid with which a cell starts: the table `grid` of a manifest, and options of
//! `isola run`.
//!
//! ```toml
//! [grid.processor]                       # or network-write, disk, files, rpc
//! policy = "wfq"                         # fifo, priority, wfq, edf or reserve
//! batch = 4
//! limit = "50%"                          # of each core or volume, or of one call at a time; otherwise bytes per second
//! activities.web = { weight = 300 }      # also: priority, deadline, reservation, limit
//!
//! [grid.weights]                         # at all resources, with the policy wfq where none is named
//! web = 300
//!
//! [grid.memory]                          # has budgets only
//! activities.web = { soft = "64M", hard = "128M" }
//!
//! [[grid.rules]]
//! port = 80
//! peer = "10.7.0.0/16"
//! activity = "web"
//! each_connection = true
//! ```

use ipnet::IpNet;
use isola_abi::grid::{
    ActivityRule, BudgetChange, EntitlementChange, GridChange, GridSetup, MAX_SETUP_BYTES, Metric,
    PolicyChange, PolicyKind, Priority, Rate, RateChange, Resource, Weight,
};
use isola_abi::ledger::ACTIVITY_NAME_LEN;
use isola_abi::size::{ByteSize, ByteSizeError};
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// The table `grid` of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridTable {
    /// The settings of the processor.
    #[serde(default)]
    processor: ResourceTable,
    /// The settings of the network's queues.
    #[serde(default, rename = "network-write")]
    network_write: ResourceTable,
    /// The settings of the block devices.
    #[serde(default)]
    disk: ResourceTable,
    /// The settings of the operations of file systems.
    #[serde(default)]
    files: ResourceTable,
    /// The settings of the calls between machines.
    #[serde(default)]
    rpc: ResourceTable,
    /// The weights at all resources, by activity.
    #[serde(default)]
    weights: BTreeMap<String, Weight>,
    /// The budgets of memory.
    #[serde(default)]
    memory: ResourceTable,
    /// The rules that attribute connections.
    #[serde(default)]
    rules: Vec<RuleTable>,
}

/// The settings of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceTable {
    #[serde(default, deserialize_with = "policy")]
    policy: Option<PolicyKind>,
    batch: Option<NonZeroU32>,
    limit: Option<String>,
    #[serde(default)]
    activities: BTreeMap<String, EntitlementTable>,
}

/// The entitlement of the activities with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntitlementTable {
    weight: Option<Weight>,
    priority: Option<u8>,
    deadline: Option<String>,
    reservation: Option<String>,
    limit: Option<String>,
    soft: Option<String>,
    hard: Option<String>,
}

/// The weight of an activity at all resources: `ACTIVITY=WEIGHT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityWeight {
    activity: String,
    weight: Weight,
}

impl FromStr for ActivityWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (activity, weight) =
            text.rsplit_once('=').ok_or("write an activity and its weight, as in web=300")?;
        let activity = activity_name(activity).map_err(|message| format!("{activity:?} {message}"))?;
        let weight: u32 = weight.parse().map_err(|error| format!("{weight:?} is no weight: {error}"))?;
        let weight = Weight::new(weight).map_err(|error| error.to_string())?;
        Ok(Self { activity, weight })
    }
}

/// The largest rate of calls, in percent of one call at a time.
const MOST_RPC_PERCENT: u32 = 1600;

/// A rule that attributes connections.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    port: Option<u16>,
    peer: Option<String>,
    activity: String,
    #[serde(default)]
    each_connection: bool,
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PolicyKind>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

impl GridTable {
    /// Returns the settings. `cpu_limit`, `net_rate` and `disk_rate`, if given, replace the table's limits of all
    /// activities, and `weights` the table's weights of their activities.
    ///
    /// # Errors
    /// A message for the user, with the key.
    pub fn setup(
        &self,
        cpu_limit: Option<&str>,
        net_rate: Option<&str>,
        disk_rate: Option<&str>,
        weights: &[ActivityWeight],
    ) -> Result<GridSetup, String> {
        let mut changes = Vec::new();
        for name in self.weights.keys() {
            activity_name(name).map_err(|message| format!("grid.weights: {name:?} {message}"))?;
        }
        let from_table = self.weights.iter().map(|(name, weight)| (name, *weight));
        let from_options = weights.iter().map(|of| (&of.activity, of.weight));
        let has_weights = from_table.len() + from_options.len() > 0;
        let resources = [
            (Resource::Processor, &self.processor, cpu_limit),
            (Resource::NetworkWrite, &self.network_write, net_rate),
            (Resource::Disk, &self.disk, disk_rate),
            (Resource::Files, &self.files, None),
            (Resource::Rpc, &self.rpc, None),
            (Resource::Memory, &self.memory, None),
        ];
        for (resource, table, limit) in resources {
            let in_resource = |message| format!("grid.{resource}.{message}");
            let mut table = table.clone();
            // Memory has budgets instead of weights.
            let takes_weights = resource != Resource::Memory;
            let from_table = from_table.clone().filter(|_| takes_weights);
            let from_options = from_options.clone().filter(|_| takes_weights);
            // A weight of the resource comes before one of all resources, and an option before the manifest.
            for (name, weight) in from_table.clone() {
                table.activities.entry(name.clone()).or_default().weight.get_or_insert(weight);
            }
            for (name, weight) in from_options.clone() {
                table.activities.entry(name.clone()).or_default().weight = Some(weight);
            }
            if takes_weights && has_weights {
                table.policy.get_or_insert(PolicyKind::Wfq);
            }
            table.add_to(&mut changes, resource, limit.or(table.limit.as_deref())).map_err(in_resource)?;
        }
        let rules = self.rules.iter().map(RuleTable::rule).collect::<Result<_, _>>();
        let setup = GridSetup { changes, rules: rules.map_err(|message| format!("grid.rules: {message}"))? };
        if setup.encoded_len() > MAX_SETUP_BYTES {
            return Err("grid: too many activities and rules: they take more than 1 KiB".to_owned());
        }
        Ok(setup)
    }
}

impl ResourceTable {
    /// Adds the changes of a resource with this limit.
    fn add_to(
        &self,
        changes: &mut Vec<GridChange>,
        resource: Resource,
        limit: Option<&str>,
    ) -> Result<(), String> {
        if resource == Resource::Memory && (limit.is_some() || self.policy.is_some() || self.batch.is_some())
        {
            return Err(
                "activities: memory has no policy, batch or limit: give activities budgets".to_owned()
            );
        }
        let limit = limit.map(|text| parse_rate(resource, text).map_err(|error| format!("limit: {error}")));
        let limit = limit.transpose()?;
        // A limit holds while there is a policy. The least surprising one keeps the order of arrival.
        let policy = self.policy.or(limit.map(|_| PolicyKind::Fifo)).map(PolicyChange::Policy);
        let change = |activity| GridChange {
            resource,
            dry_run: false,
            policy: None,
            batch: None,
            limit: None,
            activity,
        };
        if policy.is_some() || self.batch.is_some() {
            changes.push(GridChange { policy, batch: self.batch, limit, ..change(None) });
        }
        for (name, table) in &self.activities {
            let entitlement = table.change(resource);
            let entitlement = entitlement.map_err(|message| format!("activities.{name}.{message}"))?;
            let name = activity_name(name).map_err(|message| format!("activities: {name:?} {message}"))?;
            let change = change(Some((name.clone(), entitlement)));
            change.check().map_err(|error| format!("activities.{name}: {error}"))?;
            changes.push(change);
        }
        Ok(())
    }
}

impl EntitlementTable {
    fn change(&self, resource: Resource) -> Result<EntitlementChange, String> {
        let rate = |key: &str, text: &Option<String>| {
            let rate = text.as_deref().map(|text| parse_rate(resource, text)).transpose();
            rate.map_err(|message| format!("{key}: {message}"))
        };
        let budget = |key: &str, text: &Option<String>| {
            let budget = text.as_deref().map(parse_budget).transpose();
            budget.map_err(|message| format!("{key}: {message}"))
        };
        let deadline = self.deadline.as_deref().map(parse_deadline).transpose();
        let deadline = deadline.map_err(|message| format!("deadline: {message}"))?;
        Ok(EntitlementChange {
            weight: self.weight,
            priority: self.priority.map(Priority),
            deadline_ns: deadline.map(deadline_ns),
            reservation: rate("reservation", &self.reservation)?,
            limit: rate("limit", &self.limit)?,
            soft: budget("soft", &self.soft)?,
            hard: budget("hard", &self.hard)?,
        })
    }
}

impl RuleTable {
    fn rule(&self) -> Result<ActivityRule, String> {
        let activity = activity_name(&self.activity)
            .map_err(|message| format!("the activity {:?} {message}", self.activity))?;
        let peer = self
            .peer
            .as_deref()
            .map(|text| parse_network(text).map_err(|message| format!("the peer {text:?} {message}")));
        Ok(ActivityRule {
            port: self.port,
            peer: peer.transpose()?,
            activity,
            each_connection: self.each_connection,
        })
    }
}

/// Parses the name of an activity.
///
/// # Errors
/// What is wrong with it.
pub fn activity_name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is no name".to_owned()),
        _ if text.len() > ACTIVITY_NAME_LEN => Err(format!("is longer than {ACTIVITY_NAME_LEN} bytes")),
        _ if text.contains(char::is_control) => Err("has a control character".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Parses an address or network.
///
/// # Errors
/// What is wrong with it.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network =
        network.map_err(|_| "is no address or network: write 10.7.0.9, or 10.7.0.0/16".to_owned())?;
    match network.trunc() {
        truncated if truncated == network => Ok(network),
        truncated => Err(format!("has bits behind the prefix: did you mean {truncated}?")),
    }
}

/// Parses the time from a request's arrival to its deadline.
///
/// # Errors
/// A message for the user.
pub fn parse_deadline(text: &str) -> Result<Duration, String> {
    let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "write a number and its unit, as in 100us or 5ms".to_owned())
}

/// Returns a deadline in nanoseconds.
pub fn deadline_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses a budget of memory.
///
/// # Errors
/// A message for the user.
pub fn parse_budget(text: &str) -> Result<BudgetChange, String> {
    if text == "none" {
        return Ok(BudgetChange::None);
    }
    let size: Result<ByteSize, ByteSizeError> = text.parse();
    size.map(|size| BudgetChange::Bytes(size.0)).map_err(|error| format!("{text:?}: {error}, or none"))
}

/// Parses a rate in the form that the resource has.
///
/// # Errors
/// A message for the user.
pub fn parse_rate(resource: Resource, text: &str) -> Result<RateChange, String> {
    if text == "none" {
        return Ok(RateChange::None);
    }
    match resource.metric() {
        Metric::Cycles | Metric::Nanoseconds => {
            // Several calls are in progress at a time.
            let (whole, most) = match resource {
                Resource::Files => ("a volume's time", 100),
                Resource::Rpc => ("one call at a time", MOST_RPC_PERCENT),
                _ => ("a core", 100),
            };
            let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
            let thousandths = percent.map(|percent| (percent * 10.0).round());
            match thousandths {
                Some(thousandths) if (1.0..=f64::from(10 * most)).contains(&thousandths) => {
                    Ok(RateChange::Part(thousandths as u32))
                }
                _ => Err(format!(
                    "{text:?} is no part of {whole}: give a percentage from 0.1% to {most}%, or none"
                )),
            }
        }
        Metric::Bytes => {
            let size: ByteSize = text.parse().map_err(|error: ByteSizeError| {
                format!("{text:?} is no rate in bytes per second: {error}, or none")
            })?;
            Rate::per_second(size.0).map(RateChange::Rate).map_err(|error| error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(text: &str) -> Result<GridSetup, String> {
        toml::from_str::<GridTable>(text).map_err(|error| error.to_string())?.setup(None, None, None, &[])
    }

    #[test]
    fn a_table_is_a_list_of_changes_and_rules() {
        let setup = setup(
            "processor = { policy = \"wfq\", batch = 4, limit = \"50%\" }\n\
             [network-write]\npolicy = \"reserve\"\n\
             activities.web = { weight = 300, reservation = \"1M\", limit = \"10M\" }\n\
             activities.batch = { priority = 3, deadline = \"5ms\" }\n\
             [[rules]]\nport = 80\npeer = \"10.7.0.0/16\"\nactivity = \"web\"\neach_connection = true\n\
             [[rules]]\nactivity = \"rest\"\n",
        )
        .unwrap();
        let policies: Vec<_> =
            setup.changes.iter().filter_map(|change| Some((change.resource, change.policy?))).collect();
        let [wfq, reserve] = [PolicyKind::Wfq, PolicyKind::Reserve].map(PolicyChange::Policy);
        assert_eq!(policies, [(Resource::Processor, wfq), (Resource::NetworkWrite, reserve)]);
        assert_eq!(
            (setup.changes[0].batch, setup.changes[0].limit),
            (NonZeroU32::new(4), Some(RateChange::Part(500)))
        );
        let (name, batch) = setup.changes[2].activity.as_ref().unwrap();
        assert_eq!(
            (&**name, batch.priority, batch.deadline_ns),
            ("batch", Some(Priority(3)), Some(5_000_000))
        );
        let (name, web) = setup.changes[3].activity.as_ref().unwrap();
        assert_eq!((&**name, web.weight.map(Weight::get)), ("web", Some(300)));
        assert_eq!(setup.rules[0].peer.unwrap().to_string(), "10.7.0.0/16");
        assert!(setup.rules[0].each_connection && setup.rules[1].port.is_none());
    }

    #[test]
    fn options_replace_limits_and_a_limit_alone_keeps_the_order_of_arrival() {
        let table: GridTable = toml::from_str("processor.limit = \"50%\"").unwrap();
        let changes = table.setup(Some("25%"), Some("10M"), Some("50M"), &[]).unwrap().changes;
        let fifo = Some(PolicyChange::Policy(PolicyKind::Fifo));
        assert_eq!((changes[0].policy, changes[0].limit), (fifo, Some(RateChange::Part(250))));
        assert_eq!((changes[1].resource, changes[1].policy), (Resource::NetworkWrite, fifo));
        assert_eq!(GridTable::default().setup(None, None, None, &[]), Ok(GridSetup::default()));
    }

    #[test]
    fn weights_hold_at_all_resources_with_wfq_where_no_policy_is_named() {
        let table: GridTable = toml::from_str(
            "weights = { web = 300, batch = 20 }\n\
             disk.policy = \"fifo\"\n\
             [processor]\nlimit = \"50%\"\nactivities.web = { weight = 400, priority = 3 }\n",
        )
        .unwrap();
        let weights = ["batch=30".parse().unwrap(), "a=b=10000".parse().unwrap()];
        let changes = table.setup(None, Some("10M"), None, &weights).unwrap().changes;
        let [wfq, fifo] = [PolicyKind::Wfq, PolicyKind::Fifo].map(PolicyChange::Policy);
        let policies: Vec<_> =
            changes.iter().filter_map(|change| Some((change.resource, change.policy?))).collect();
        let resources =
            [Resource::Processor, Resource::NetworkWrite, Resource::Disk, Resource::Files, Resource::Rpc];
        assert!(policies.into_iter().eq(resources.into_iter().zip([wfq, wfq, fifo, wfq, wfq])));
        assert!(changes[0].limit == Some(RateChange::Part(500)) && changes[4].limit.is_some());
        for (resource, web) in resources.into_iter().zip([400, 300, 300, 300, 300]) {
            let of = changes.iter().filter(|change| change.resource == resource);
            let weights = of.filter_map(|change| change.activity.as_ref());
            let weights = weights.map(|(name, change)| (&**name, change.weight.unwrap().get()));
            assert!(weights.eq([("a=b", 10_000), ("batch", 30), ("web", web)]), "{resource}");
        }
        assert_eq!(changes[3].activity.as_ref().unwrap().1.priority, Some(Priority(3)));
        for (text, message) in [
            ("web", "as in web=300"),
            ("=3", "is no name"),
            ("web=", "no weight"),
            ("web=0", "from 1 to 10000"),
            ("web=x", "no weight"),
        ] {
            let error = text.parse::<ActivityWeight>().unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        let many: String = (0..80).map(|number| format!("activities.tenant-{number}.weight = 1\n")).collect();
        for (text, message) in [
            ("processor.limit = \"10M\"", "grid.processor.limit: \"10M\" is no part of a core"),
            ("network-write.activities.web.limit = \"x\"", "grid.network-write.activities.web.limit: "),
            ("processor.activities.web.deadline = \"5\"", "grid.processor.activities.web.deadline: write"),
            ("processor.activities.web.weight = 0", "give a weight from 1 to 10000"),
            ("processor.policy = \"best\"", "use fifo, priority, wfq, edf or reserve"),
            ("processor.weight = 3", "weight"),
            ("weights.web = 0", "give a weight from 1 to 10000"),
            ("weights.\"\" = 1", "grid.weights: \"\" is no name"),
            ("printer.policy = \"wfq\"", "network-write"),
            ("[[rules]]\nport = 80", "activity"),
            ("[[rules]]\nactivity = \"\"", "grid.rules: the activity \"\" is no name"),
            ("[[rules]]\nactivity = \"web\"\npeer = \"10.7.0.1/16\"", "did you mean 10.7.0.0/16"),
            (&format!("[processor]\n{many}"), "1 KiB"),
        ] {
            let error = setup(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn rates_have_the_unit_of_their_resource() {
        let rate = |units| RateChange::Rate(Rate::per_second(units).unwrap());
        for (resource, text, expected) in [
            (Resource::Processor, "25%", RateChange::Part(250)),
            (Resource::Processor, "0.1%", RateChange::Part(1)),
            (Resource::Processor, "100%", RateChange::Part(1_000)),
            (Resource::Processor, "none", RateChange::None),
            (Resource::Files, "100%", RateChange::Part(1_000)),
            (Resource::Rpc, "150%", RateChange::Part(1_500)),
            (Resource::Rpc, "1600%", RateChange::Part(16_000)),
            (Resource::NetworkWrite, "10M", rate(10 << 20)),
            (Resource::NetworkWrite, "none", RateChange::None),
        ] {
            assert_eq!(parse_rate(resource, text), Ok(expected), "{text}");
        }
        for text in ["", "%", "0%", "101%", "25", "10M", "-1%", "NaN%"] {
            for resource in [Resource::Processor, Resource::Files] {
                let message = parse_rate(resource, text).unwrap_err();
                assert!(message.contains("percentage"), "{message}");
            }
        }
        for text in ["", "25%", "0", "fast"] {
            let message = parse_rate(Resource::NetworkWrite, text).unwrap_err();
            assert!(message.contains("per second"), "{message}");
        }
    }

    #[test]
    fn peers_are_addresses_or_networks_without_further_bits() {
        for (text, expected) in
            [("10.7.0.0/16", "10.7.0.0/16"), ("10.7.0.9", "10.7.0.9/32"), ("2001:db8::/32", "2001:db8::/32")]
        {
            assert_eq!(parse_network(text).map(|network| network.to_string()), Ok(expected.to_owned()));
        }
        assert!(parse_network("10.7.0.9/16").unwrap_err().contains("10.7.0.0/16"));
        for text in ["", "10.7", "10.7.0.0/33", "example.org"] {
            assert!(parse_network(text).unwrap_err().contains("write"), "{text}");
        }
    }
}
