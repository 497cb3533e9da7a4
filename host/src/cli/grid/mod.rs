//! `isola grid`: shows and changes the resource grid of a running cell.
//!
//! The module `picture` draws the grid for a terminal, the module `tables` formats it for scripts.

mod picture;
mod tables;

pub(super) use tables::budget_text;

use super::failure::{REFUSED, USAGE};
use super::{Context, Failure, complete, show};
use crate::cellctl::look_up;
use crate::client::Client;
use crate::grid_setup::{
    activity_name, deadline_ns, parse_budget, parse_deadline, parse_network, parse_rate,
};
use crate::hosted_cells;
use crate::machine::LockedMachine;
use crate::output::Format;
use crate::output::charset::Charset;
use crate::output::view::{ActivitiesView, GridView, is_running};
use crate::query::{Extent, QueryAnswer, facts};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use isola_abi::grid::{
    ActivityRule, BudgetChange, EntitlementChange, GridChange, PolicyChange, PolicyKind, Priority, Resource,
    RuleChange, Weight,
};
use isola_abi::query::Query;
use ratatui::crossterm::terminal;
use std::io::{self, IsTerminal};
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

/// Shows or changes how a running cell divides its resources among activities
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Show(ShowArguments),
    Activities(ActivitiesArguments),
    #[command(subcommand)]
    Rule(RuleVerb),
    Set(SetArguments),
}

/// Shows the policy of each resource, and what activities have received
#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal, a picture: the resources in the order in which work flows through them, with queues, shares and waiting \
times. A pipe and --table get tables.

A resource with the policy `direct` has no scheduler: its requests wait in the order of their arrival, if at all. Other \
policies order the requests of activities that compete; only these requests are counted here. `isola inspect` shows all \
cycles of an activity. Memory is charged to activities in any case. Entitlements that were set are listed whether or not \
their activities compete, at most 32 per resource.

Examples:
  isola grid show kv
  isola grid show kv --table
  isola grid show kv -o json | jq .activities")]
struct ShowArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// Prints tables on a terminal also
    #[arg(long)]
    table: bool,
    /// Prints the picture to a pipe also
    #[arg(long, conflicts_with = "table")]
    picture: bool,
    /// Draws the picture in ASCII, as in a locale without UTF-8
    #[arg(long, conflicts_with = "table")]
    ascii: bool,
}

/// Shows the tree of activities, and the usage of each
#[derive(Debug, Args)]
#[command(after_help = "\
An activity's cycles and events include those of the activities below it. The command lists the activities that have used \
most. `isola inspect` shows the memory of those without a parent.

Examples:
  isola grid activities kv
  isola grid activities kv --most 200 -o json | jq .activities")]
struct ActivitiesArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// Maximum number of activities, 200 at most
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    most: u32,
}

/// Attributes accepted connections to activities, by port and peer
#[derive(Debug, Subcommand)]
enum RuleVerb {
    Add(AddRuleArguments),
    Clear(ClearRulesArguments),
}

/// Adds a rule behind the cell's others: the first that matches a new connection counts
#[derive(Debug, Args)]
#[command(after_help = "\
All conditions of a rule must hold. The cell registers the activity if it has none of that name. Existing connections keep \
their activities. `isola grid show` lists the rules.

Examples:
  isola grid rule add kv --peer 10.7.0.0/16 --activity tenant-7
  isola grid rule add kv --port 11211 --activity clients --each-connection")]
struct AddRuleArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The activity, by its name
    #[arg(long, value_name = "NAME", value_parser = activity_name)]
    activity: String,
    /// The port that connections are made to; all if not given
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The peers' address or network, as in 10.7.0.0/16; all if not given
    #[arg(long, value_name = "NETWORK", value_parser = parse_network)]
    peer: Option<IpNet>,
    /// Gives each connection an activity of its own below this one
    #[arg(long)]
    each_connection: bool,
}

/// Removes all rules of a cell; the activities remain
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isola grid rule clear kv")]
struct ClearRulesArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
}

/// Changes the policy of a resource, or the entitlement of an activity, while the cell serves
#[derive(Debug, Args)]
#[command(after_help = "\
Resources are processor (the time of the cores, in cycles), network-write (frames to the network device, in bytes), disk \
(requests to the block devices, in bytes), files (operations of file systems, by the time for which they occupy the \
volume), rpc (calls between machines, by the time for which they are in progress) and memory. Each core, queue, device \
and volume divides its own.

Policies:
  direct    no scheduler
  fifo      the request that arrived first
  priority  the activity of the highest priority
  wfq       in proportion to the weights of the activities that compete
  edf       the request with the earliest deadline
  reserve   reservations first; then, up to the limits, by weight

A rate is a part of a core, of a volume's time or of one call at a time for processor, files and rpc, as in 25%, and bytes \
per second for network-write and disk, as in 10M; none removes it. With --activity, --limit is that of the activity, otherwise that of each core or queue. An activity's reservation and \
limit need the policy reserve. All changes of a command are made, or none.

Memory has no rates, but budgets: while an activity uses no more than --soft, it loses no cached memory to \
others; above --hard, it loses its own even if the cell has more, and frames for it are dropped. none removes a budget. \
The policy of memory orders requests that wait for free memory.

Examples:
  isola grid set kv processor --policy wfq
  isola grid set kv processor --activity web --weight 300
  isola grid set kv network-write --policy reserve --activity backup --limit 10M
  isola grid set web files --policy reserve --activity backup --limit 20%
  isola grid set kv memory --activity web --soft 64M --hard 128M
  isola grid set kv processor --policy direct --dry-run")]
struct SetArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The resource
    #[arg(value_parser = Resource::ALL.map(Resource::name))]
    resource: String,
    /// The order of competing activities
    #[arg(long, value_parser = ["direct", "fifo", "priority", "wfq", "edf", "reserve"])]
    policy: Option<String>,
    /// Maximum number of requests of an activity per decision: more cost less, and make shares coarser
    #[arg(long, value_name = "NUMBER")]
    batch: Option<NonZeroU32>,
    /// All activities with this name
    #[arg(long, value_name = "NAME")]
    activity: Option<String>,
    /// The activity's weight, 1 to 10000; 100 by default
    #[arg(long, value_name = "NUMBER", requires = "activity", value_parser = weight)]
    weight: Option<Weight>,
    /// The activity's priority, 0 to 255; 0 by default
    #[arg(long, value_name = "NUMBER", requires = "activity")]
    priority: Option<u8>,
    /// The time from a request's arrival to its deadline, as in 5ms
    #[arg(long, value_name = "TIME", requires = "activity", value_parser = parse_deadline)]
    deadline: Option<Duration>,
    /// The least that the activity gets
    #[arg(long, value_name = "RATE", requires = "activity")]
    reservation: Option<String>,
    /// The most that the activity, or each core or queue, gets
    #[arg(long, value_name = "RATE")]
    limit: Option<String>,
    /// The memory that the activity does not lose to others, as in 64M, or none
    #[arg(long, value_name = "SIZE", requires = "activity", value_parser = parse_budget)]
    soft: Option<BudgetChange>,
    /// The most memory of the activity
    #[arg(long, value_name = "SIZE", requires = "activity", value_parser = parse_budget)]
    hard: Option<BudgetChange>,
    /// Checks the change, and makes none
    #[arg(long)]
    dry_run: bool,
}

fn weight(text: &str) -> Result<Weight, String> {
    let number: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    Weight::new(number).map_err(|error| error.to_string())
}

pub(super) fn grid(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Show(arguments) => arguments.show(context),
        Verb::Activities(ActivitiesArguments { cell, most }) => {
            let answer = ask(context, cell, &Query::Activities { most: *most })?;
            let view = ActivitiesView::new(cell, &answer);
            context.output.answer(&view, || tables::activities_text(&answer))?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Rule(RuleVerb::Add(arguments)) => {
            let AddRuleArguments { cell, activity, port, peer, each_connection } = arguments;
            let (activity, each_connection) = (activity.clone(), *each_connection);
            let rule = ActivityRule { port: *port, peer: *peer, activity, each_connection };
            show_grid(context, cell, &Query::ChangeRules(RuleChange::Add(rule)))
        }
        Verb::Rule(RuleVerb::Clear(ClearRulesArguments { cell })) => {
            show_grid(context, cell, &Query::ChangeRules(RuleChange::Clear))
        }
        Verb::Set(arguments) => {
            let change = arguments.change().map_err(|message| Failure::new(USAGE, message))?;
            show_grid(context, &arguments.cell, &Query::ChangeGrid(change))
        }
    }
}

impl ShowArguments {
    /// Prints the picture to a terminal or by request, and tables otherwise.
    fn show(&self, context: &Context) -> Result<ExitCode, Failure> {
        let is_picture = self.picture || self.ascii || (!self.table && io::stdout().is_terminal());
        if !is_picture || context.output.format == Format::Json {
            return show_grid(context, &self.cell, &Query::Grid);
        }
        let answer = ask(context, &self.cell, &Query::Grid)?;
        // A cell that has not answered would not answer this query either.
        let counters = match answer.extent {
            Extent::Nothing => Vec::new(),
            Extent::Whole | Extent::Without(_) => ask(context, &self.cell, &Query::Counters)?.counters,
        };
        let charset = if self.ascii { Charset::Ascii } else { Charset::of_locale() };
        // A pipe's reader has no width that is known; the last column would wrap on some terminals.
        let size = io::stdout().is_terminal().then(|| terminal::size().ok()).flatten();
        let width = size.map_or(picture::WIDTH, |(columns, _)| usize::from(columns).saturating_sub(1));
        context.output.text(&picture::picture(&self.cell, &answer, &counters, charset, width))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl SetArguments {
    /// Returns the change, or the reason why it is none.
    fn change(&self) -> Result<GridChange, String> {
        let resource: Resource =
            self.resource.parse().map_err(|error: isola_abi::grid::UnknownResource| error.to_string())?;
        let rate = |text: &Option<String>| text.as_deref().map(|text| parse_rate(resource, text)).transpose();
        let (reservation, limit) = (rate(&self.reservation)?, rate(&self.limit)?);
        let policy = match self.policy.as_deref() {
            Some("direct") => Some(PolicyChange::Direct),
            Some(name) => {
                let policy: PolicyKind =
                    name.parse().map_err(|error: isola_abi::grid::UnknownPolicy| error.to_string())?;
                Some(PolicyChange::Policy(policy))
            }
            None => None,
        };
        let of_activity = |limit| EntitlementChange {
            weight: self.weight,
            priority: self.priority.map(Priority),
            deadline_ns: self.deadline.map(deadline_ns),
            reservation,
            limit,
            soft: self.soft,
            hard: self.hard,
        };
        let (limit, activity) = match &self.activity {
            Some(name) => (None, Some((name.clone(), of_activity(limit)))),
            None => (limit, None),
        };
        let change =
            GridChange { resource, dry_run: self.dry_run, policy, batch: self.batch, limit, activity };
        let changes_activity =
            change.activity.as_ref().is_some_and(|(_, change)| *change != EntitlementChange::default());
        if change.activity.is_some() && !changes_activity {
            return Err(
                "nothing to change for the activity: use --weight, --priority, --deadline, --reservation, \
                        --limit, --soft or --hard"
                    .to_owned(),
            );
        }
        if change.policy.is_none() && change.batch.is_none() && change.limit.is_none() && !changes_activity {
            return Err("nothing to change: use --policy, --batch, --limit or --activity".to_owned());
        }
        change.check().map_err(|error| error.to_string())?;
        Ok(change)
    }
}

/// Sends a query to a cell, and prints the settings that are in force then.
fn show_grid(context: &Context, name: &str, query: &Query) -> Result<ExitCode, Failure> {
    let answer = ask(context, name, query)?;
    let view = GridView::new(name, &answer);
    context.output.answer(&view, || tables::text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

/// Sends a query to a cell.
fn ask(context: &Context, name: &str, query: &Query) -> Result<QueryAnswer, Failure> {
    match hosted_cells::find(&context.root, name)? {
        Some(mut client) => Ok(facts(&mut client, name, query)?),
        None => {
            let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
            let mut client: Client = locked.client()?;
            let cell = look_up(&locked, &mut client, name)?;
            if !is_running(&cell) {
                let state = show::state(&cell);
                return Err(Failure::new(
                    REFUSED,
                    format!("{name:?} is {state}: only a running cell has a grid"),
                ));
            }
            Ok(facts(&mut client, name, query)?)
        }
    }
}
