//! The picture of a cell's grid: its resources from top to bottom, in the order in which work flows.
//!
//! ```text
//!                        network
//!                           │
//!                           ▼
//! ┌─ processor ── wfq ─────────────────────────────────┐
//! │ core 0                                  5 waiting  │
//! │   web    █████████░░░  75.0 %  weight 300   2 wait │
//! └─────────────────────────┬──────────────────────────┘
//!                           ▼
//! ```

use super::tables::{rate_text, set_facts};
use crate::cli::network::extent_text;
use crate::output::charset::Charset;
use crate::output::human;
use crate::output::printable::printable_line;
use crate::query::{Extent, QueryAnswer, in_tree_order};
use isola_abi::grid::{Entitlement, PolicyKind, Rate, Resource};
use isola_abi::query::{ActivityMemory, CounterName, GridClient, GridSettings};
use isola_abi::size::ByteSize;
use unicode_width::UnicodeWidthStr;

/// The width of a picture if the terminal's is unknown.
pub(super) const WIDTH: usize = 80;

/// The limits of a picture's width.
const NARROWEST: usize = 32;
const WIDEST: usize = 100;

/// The names of resources in the order in which work flows through them.
const FLOW: [&str; 6] = ["network-read", "processor", "rpc", "files", "disk", "network-write"];

/// The most activities that are shown of a scheduler: those that have received most.
const MOST_ACTIVITIES: usize = 16;

/// The most levels that a name is indented by.
const MAX_INDENT: usize = 4;

/// The lines of a box.
struct Lines {
    horizontal: &'static str,
    vertical: &'static str,
    /// The corners: top left, top right, bottom left, bottom right.
    corners: [&'static str; 4],
    /// The bottom line where an arrow begins.
    exit: &'static str,
    arrow: &'static str,
}

const UNICODE: Lines =
    Lines {
        horizontal: "─", vertical: "│", corners: ["┌", "┐", "└", "┘"], exit: "┬", arrow: "▼"
    };

const ASCII: Lines =
    Lines { horizontal: "-", vertical: "|", corners: ["+", "+", "+", "+"], exit: "+", arrow: "v" };

/// Draws the grid of a cell, at most `width` columns wide. `counters` are those of the protocol stack, if it answered.
pub(super) fn picture(
    cell: &str,
    answer: &QueryAnswer,
    counters: &[(CounterName, u64)],
    charset: Charset,
    width: usize,
) -> String {
    let mut picture = Picture {
        charset,
        lines: if charset == Charset::Unicode { UNICODE } else { ASCII },
        width: width.clamp(NARROWEST, WIDEST),
        text: String::new(),
    };
    let waiting: u64 = answer.grid_clients.iter().fold(0, |sum, client| sum.saturating_add(client.waiting));
    let waiting = match waiting {
        0 => "no request waits".to_owned(),
        1 => "1 request waits".to_owned(),
        count => format!("{} requests wait", human::count(count)),
    };
    picture.ends(&printable_line(cell), &waiting, "", "");
    picture.centred("network");
    picture.arrow();
    // The frames received are divided also without a scheduler of their own.
    let has_read = answer.grid_settings.iter().any(|settings| settings.resource.name() == FLOW[0]);
    if !has_read {
        picture.open(FLOW[0], "a queue of frames per activity");
        picture.received(counters);
        picture.rules(answer);
        picture.close();
    }
    let mut resources: Vec<&GridSettings> = answer.grid_settings.iter().collect();
    let position = |settings: &GridSettings| FLOW.iter().position(|name| *name == settings.resource.name());
    resources.sort_by_key(|settings| position(settings).unwrap_or(FLOW.len()));
    for settings in resources {
        picture.resource(settings, answer, counters);
    }
    picture.centred("network");
    if answer.extent != Extent::Whole {
        picture.text.push_str(&extent_text(answer.extent));
    }
    picture.text
}

/// A picture that grows downwards.
struct Picture {
    charset: Charset,
    lines: Lines,
    width: usize,
    text: String,
}

impl Picture {
    /// Adds a line with a text at each end, between two borders.
    fn ends(&mut self, left: &str, right: &str, before: &str, after: &str) {
        let room = self.width - before.width() - after.width();
        let right = self.charset.cut(right, room);
        let gap = usize::from(!right.is_empty());
        let left = self.charset.fit(left, room.saturating_sub(right.width() + gap));
        let line = format!("{before}{left}{}{right}{after}", " ".repeat(gap.min(room - right.width())));
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn centred(&mut self, text: &str) {
        // The arrows are in the middle of the boxes.
        let at = (self.width / 2).saturating_sub(text.width() / 2);
        self.text.push_str(&format!("{}{text}\n", " ".repeat(at)));
    }

    fn arrow(&mut self) {
        self.centred(self.lines.arrow);
    }

    /// Adds a line in the box, unless it would be empty.
    fn line(&mut self, left: &str, right: &str) {
        if left.is_empty() && right.is_empty() {
            return;
        }
        let vertical = self.lines.vertical;
        self.ends(left, right, &format!("{vertical} "), &format!(" {vertical}"));
    }

    /// Adds the top of a box.
    fn open(&mut self, name: &str, settings: &str) {
        let [left, right, ..] = self.lines.corners;
        let horizontal = self.lines.horizontal;
        let title = format!(" {name} {horizontal}{horizontal} {settings} ");
        let title = self.charset.cut(&title, self.width - 4);
        let rest = horizontal.repeat(self.width - 3 - title.width());
        self.text.push_str(&format!("{left}{horizontal}{title}{rest}{right}\n"));
    }

    /// Adds the bottom of a box, and an arrow.
    fn close(&mut self) {
        let [_, _, left, right] = self.lines.corners;
        let horizontal = self.lines.horizontal;
        let middle = self.width / 2;
        let (before, after) = (horizontal.repeat(middle - 1), horizontal.repeat(self.width - middle - 2));
        self.text.push_str(&format!("{left}{before}{}{after}{right}\n", self.lines.exit));
        self.arrow();
    }

    /// Adds the rules that attribute connections.
    fn rules(&mut self, answer: &QueryAnswer) {
        let arrow = self.charset.choose("→", "->");
        for rule in &answer.rules {
            let all = String::new;
            let port = rule.port.map_or_else(all, |port| format!("port {port} "));
            let peer = rule.peer.map_or_else(all, |peer| format!("from {peer} "));
            let which = if port.is_empty() && peer.is_empty() { "all ".to_owned() } else { port + &peer };
            let own = if rule.each_connection { ", each connection" } else { "" };
            self.line(&format!("{which}{arrow} {}{own}", printable_line(&rule.activity)), "rule");
        }
        if answer.rules.is_empty() {
            self.line("no rules: the application chooses activities", "");
        }
    }

    /// Adds a text, and facts at the right: on one line, or each group on as many lines as it needs.
    fn facts(&mut self, left: &str, entitlement: &[String], waits: &[String]) {
        let room = self.width - 4;
        let all = [entitlement, waits].concat().join(", ");
        if left.width() + 2 + all.width() <= room {
            return self.line(left, &all);
        }
        let (mut left, mut right) = (left.to_owned(), String::new());
        for group in [entitlement, waits] {
            for fact in group {
                let longer = if right.is_empty() { fact.clone() } else { format!("{right}, {fact}") };
                if left.width() + 2 + longer.width() <= room {
                    right = longer;
                } else {
                    self.line(&left, &right);
                    (left, right) = (String::new(), fact.clone());
                }
            }
            self.line(&left, &right);
            (left, right) = (String::new(), String::new());
        }
    }

    /// Adds the frames received, and those that an activity's full queue lost.
    fn received(&mut self, counters: &[(CounterName, u64)]) {
        let Some(frames) = traffic(counters, "frames_in", "bytes_in") else { return };
        let dropped = counter(counters, "drop_activity_busy").unwrap_or(0);
        let dropped = match dropped {
            0 => "none dropped by a full queue".to_owned(),
            count => format!("{} dropped by a full queue", human::count(count)),
        };
        self.facts(&frames, &[], &[dropped]);
    }

    fn resource(&mut self, settings: &GridSettings, answer: &QueryAnswer, counters: &[(CounterName, u64)]) {
        let GridSettings { resource, policy, batch, limit, capacity, .. } = settings;
        let mut title = policy.map_or("direct", |policy| policy.name()).to_owned();
        if policy.is_some() && batch.get() > 1 {
            title.push_str(&format!(", batches of {batch}"));
        }
        if limit.is_some() {
            title.push_str(&format!(", limit {}", rate_text(*resource, *limit, *capacity)));
        }
        self.open(resource.name(), &title);
        if resource.name() == FLOW[0] {
            self.received(counters);
            self.rules(answer);
        }
        if *resource == Resource::NetworkWrite
            && let Some(frames) = traffic(counters, "frames_out", "bytes_out")
        {
            self.line(&frames, "");
        }
        let mut clients: Vec<&GridClient> =
            answer.grid_clients.iter().filter(|client| client.resource == *resource).collect();
        clients.sort_by_key(|client| (client.core, std::cmp::Reverse(client.cost), client.activity));
        // Most activities have at most one above them.
        let indent = if clients.iter().any(|client| client.parent.is_some()) { 2 } else { 0 };
        let longest_name = clients.iter().map(|client| printable_line(&client.name).width() + indent).max();
        for clients in clients.chunk_by(|one, next| one.core == next.core) {
            self.scheduler(settings, clients, longest_name.unwrap_or_default());
        }
        if *resource == Resource::Memory {
            self.memory(settings, answer);
            self.entitlements(settings, answer);
            return self.close();
        }
        match (clients.is_empty(), policy) {
            (false, _) => {}
            (true, None) => self.line("no scheduler: served in the order of arrival", ""),
            (true, Some(_)) => self.line("no activities have competed yet", ""),
        }
        self.entitlements(settings, answer);
        self.close();
    }

    /// Adds the entitlements that were set, whether the policy uses them or not.
    fn entitlements(&mut self, settings: &GridSettings, answer: &QueryAnswer) {
        let set = answer.entitlements.iter().filter(|set| set.resource == settings.resource);
        let mut shown = 0;
        for set in set.take(MOST_ACTIVITIES) {
            let facts = set_facts(set.resource, settings.capacity, &set.entitlement);
            self.facts(&format!("set {}", printable_line(&set.name)), &facts, &[]);
            shown += 1;
        }
        let more = settings.entitlements.saturating_sub(shown);
        if more > 0 {
            self.line(&format!("and {} set more", human::count(more.into())), "");
        }
    }

    /// Adds the memory of each activity.
    fn memory(&mut self, settings: &GridSettings, answer: &QueryAnswer) {
        if answer.memory.is_empty() {
            self.line("no activity has any", "");
        }
        let sum = answer.memory.iter().map(|usage| usage.memory.charged_bytes).fold(0, u64::saturating_add);
        let longest = answer.memory.iter().map(|usage| printable_line(&usage.name).width()).max();
        let names = longest.unwrap_or_default().clamp(4, (self.width / 3).clamp(10, 24));
        let bar = (self.width / 4).min(20).min(self.width.saturating_sub(names + 16));
        for usage in answer.memory.iter().take(MOST_ACTIVITIES) {
            let name = self.charset.fit(&printable_line(&usage.name), names);
            let ActivityMemory { charged_bytes, budget, reclaimed_bytes } = usage.memory;
            let bar = self.charset.bar(charged_bytes as f64 / sum.max(1) as f64, bar);
            let budgets = [("soft", budget.soft), ("hard", budget.hard)];
            let mut right: Vec<String> = budgets
                .iter()
                .filter_map(|(kind, bytes)| Some(format!("{kind} {}", ByteSize((*bytes)?))))
                .collect();
            if reclaimed_bytes > 0 {
                right.push(format!("{} reclaimed", human::cost(reclaimed_bytes, "bytes")));
            }
            // The place in the order of requests, if that is not the same for all.
            let is_set = usage.entitlement != Entitlement { memory: budget, ..Entitlement::default() };
            if is_set {
                right.extend(entitlement_facts(settings, &usage.entitlement));
            }
            if usage.waiting > 0 {
                right.push(format!("{} wait", human::count(usage.waiting)));
            }
            self.line(&format!("  {name} {bar} {:>9}", human::cost(charged_bytes, "bytes")), "");
            if !right.is_empty() {
                self.line("", &right.join(", "));
            }
        }
        let more = answer.memory.len().saturating_sub(MOST_ACTIVITIES);
        if more > 0 {
            self.line(&format!("  and {} that have less", human::count(more as u64)), "");
        }
    }

    /// Adds the activities of a scheduler.
    fn scheduler(&mut self, settings: &GridSettings, clients: &[&GridClient], longest_name: usize) {
        let Some(first) = clients.first() else { return };
        let sum =
            |of: fn(&GridClient) -> u64| clients.iter().map(|client| of(client)).fold(0, u64::saturating_add);
        let (waiting, cost) = (sum(|client| client.waiting), sum(|client| client.cost));
        let of = match settings.resource {
            Resource::Processor => "core",
            Resource::NetworkWrite => "queue",
            Resource::Disk => "disks of core",
            Resource::Files => "volumes of core",
            Resource::Rpc => "calls of core",
            Resource::Memory => "memory of core",
        };
        self.line(&format!("{of} {}", first.core), &format!("{} waiting", human::count(waiting)));
        let shown = &clients[..clients.len().min(MOST_ACTIVITIES)];
        let ordered = in_tree_order(shown, |client| Some(client.activity), |client| client.parent);
        let names = longest_name.clamp(4, (self.width / 3).clamp(10, 24));
        let bar = (self.width / 4).min(20).min(self.width.saturating_sub(names + 16));
        for (level, client) in ordered {
            let share = client.cost as f64 / cost.max(1) as f64;
            let name = format!("{}{}", "  ".repeat(level.min(MAX_INDENT)), printable_line(&client.name));
            let name = self.charset.fit(&name, names);
            let bar = self.charset.bar(share, bar);
            let left = format!("  {name} {bar} {:>5.1} %", share * 100.0);
            let mut waits = Vec::new();
            let mean = client.waited_ns.checked_div(client.dispatched);
            if mean.is_none() && client.waiting == 0 {
                waits.push("no request".to_owned());
            } else {
                waits.push(format!("{} wait", human::count(client.waiting)));
            }
            if let Some(mean) = mean {
                waits.push(format!("mean {}", human::duration_ns(mean)));
                waits.push(format!("longest {}", human::duration_ns(client.longest_wait_ns)));
            }
            let entitlement = entitlement_facts(settings, &client.entitlement);
            self.facts(&left, &entitlement, &waits);
        }
        let more = clients.len() - shown.len();
        if more > 0 {
            self.line(&format!("  and {} that have received less", human::count(more as u64)), "");
        }
    }
}

/// Returns the value of a counter.
fn counter(counters: &[(CounterName, u64)], name: &str) -> Option<u64> {
    counters.iter().find(|(counter, _)| counter.name == name).map(|(_, count)| *count)
}

/// Formats the traffic that two counters have counted.
fn traffic(counters: &[(CounterName, u64)], frames: &str, bytes: &str) -> Option<String> {
    let (frames, bytes) = (counter(counters, frames)?, counter(counters, bytes)?);
    Some(format!("{} frames, {}", human::count(frames), ByteSize(bytes)))
}

/// Returns the parts of an entitlement that the policy uses.
fn entitlement_facts(settings: &GridSettings, entitlement: &Entitlement) -> Vec<String> {
    let GridSettings { resource, policy, capacity, .. } = settings;
    let Entitlement { weight, priority, deadline_ns, reservation, limit, memory: _ } = entitlement;
    let weight = format!("weight {}", weight.get());
    match policy {
        None | Some(PolicyKind::Fifo) => vec![],
        Some(PolicyKind::Wfq) => vec![weight],
        Some(PolicyKind::Priority) => vec![format!("priority {}", priority.0)],
        Some(PolicyKind::Edf) => vec![format!("deadline {}", human::duration_ns(*deadline_ns))],
        Some(PolicyKind::Reserve) => {
            let rate = |name: &str, rate: &Option<Rate>| {
                rate.map(|rate| format!("{name} {}", rate_text(*resource, Some(rate), *capacity)))
            };
            let rates = [rate("reserved", reservation), rate("limit", limit)];
            rates.into_iter().flatten().chain([weight]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::grid::{ActivityRule, Weight};
    use std::num::NonZeroU32;

    fn client(core: u32, name: &str, cost: u64) -> GridClient {
        GridClient {
            resource: Resource::Processor,
            core,
            activity: 2,
            parent: None,
            name: name.into(),
            entitlement: Entitlement::by_weight(Weight::new(300).unwrap()),
            waiting: 2,
            dispatched: 10,
            cost,
            waited_ns: 50_000,
            longest_wait_ns: 20_000,
        }
    }

    fn answer(clients: Vec<GridClient>) -> QueryAnswer {
        let settings = |resource, policy, limit| GridSettings {
            resource,
            policy,
            batch: NonZeroU32::new(4).unwrap(),
            limit,
            capacity: None,
            entitlements: 0,
        };
        let limit = Rate::per_second(10 << 20).ok();
        QueryAnswer {
            // Not in the order of the flow.
            grid_settings: vec![
                settings(Resource::NetworkWrite, None, limit),
                settings(Resource::Processor, Some(PolicyKind::Wfq), None),
            ],
            grid_clients: clients,
            rules: vec![ActivityRule {
                port: Some(11211),
                peer: None,
                activity: "clients".into(),
                each_connection: true,
            }],
            extent: Extent::Whole,
            ..QueryAnswer::default()
        }
    }

    fn drawn(answer: &QueryAnswer, charset: Charset, width: usize) -> String {
        picture("kv", answer, &[], charset, width)
    }

    fn two() -> QueryAnswer {
        answer(vec![client(0, "batch", 1_000), client(0, "web", 3_000), client(1, "web", 7)])
    }

    #[test]
    fn resources_are_drawn_in_the_order_of_the_flow_with_their_shares() {
        for width in [80, 40, 200] {
            let text = drawn(&two(), Charset::Unicode, width);
            let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
            let order =
                ["kv", "network\n", "▼", " network-read ", " processor ", "web", "batch ", " network-write "];
            assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
            assert!(text.contains("wfq, batches of 4") && text.contains("6 requests wait"), "{text}");
            assert!(text.contains("75.0 %") && text.contains("25.0 %") && text.contains("100.0 %"), "{text}");
            assert!(text.contains("weight 300") && text.contains("core 1"), "{text}");
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            assert_eq!(widest, width.clamp(NARROWEST, WIDEST), "{text}");
        }
        assert!(drawn(&two(), Charset::Unicode, 0).contains("longest 20.0 us"));
        let text = drawn(&two(), Charset::Unicode, 80);
        assert!(text.contains("port 11211 → clients, each connection"), "{text}");
        assert!(text.contains("no scheduler: served in the order of arrival"), "{text}");
        assert!(text.contains("direct, limit 10 MiB/s"), "{text}");
    }

    #[test]
    fn the_sides_of_the_boxes_are_straight() {
        for (charset, side) in [(Charset::Unicode, '│'), (Charset::Ascii, '|')] {
            let long = answer(vec![client(0, &format!("語\x1b[2J{}", "long".repeat(30)), 1)]);
            for width in [40, 80, 100] {
                let text = drawn(&long, charset, width);
                let sides: Vec<&str> = text.lines().filter(|line| line.starts_with(side)).collect();
                assert!(sides.len() >= 4, "{text}");
                assert!(sides.iter().all(|line| line.width() == width && line.ends_with(side)), "{text}");
                assert_eq!(text.is_ascii(), charset == Charset::Ascii && !text.contains('語'), "{text}");
                assert!(!text.contains('\x1b'), "{text}");
            }
        }
    }

    #[test]
    fn many_activities_are_cut_and_an_incomplete_answer_is_noted() {
        let clients = (0..40).map(|number| client(0, &format!("tenant-{number}"), number)).collect();
        let text = drawn(&QueryAnswer { extent: Extent::Without(1), ..answer(clients) }, Charset::Ascii, 80);
        assert!(text.contains("and 24 that have received less"), "{text}");
        assert!(text.contains("tenant-39") && !text.contains("tenant-3 "), "{text}");
        assert!(text.contains("1 of the cell's cores have not answered"), "{text}");
        let family =
            vec![client(0, "clients", 0), GridClient { activity: 9, parent: Some(2), ..client(0, "one", 5) }];
        let text = drawn(&answer(family), Charset::Ascii, 80);
        assert!(text.find("|   clients").unwrap() < text.find("|     one").unwrap(), "{text}");
        let empty = QueryAnswer::default();
        assert!(drawn(&empty, Charset::Ascii, 80).contains("the cell does not answer"));
    }

    #[test]
    fn counters_of_frames_are_in_the_boxes_of_the_network() {
        let counter = |name: &str, count| (CounterName { layer: "ip".into(), name: name.into() }, count);
        let counters = [
            counter("frames_in", 1_234),
            counter("bytes_in", 2_048),
            counter("drop_activity_busy", 7),
            counter("frames_out", 9),
            counter("bytes_out", 10),
        ];
        for width in [80, 40] {
            let text = picture("kv", &two(), &counters, Charset::Ascii, width);
            let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
            assert!(at("network-read") < at("1,234 frames, 2 KiB"), "{text}");
            assert!(at("7 dropped by a full queue") < at("processor"), "{text}");
            assert!(at("network-write") < at("9 frames, 10 B"), "{text}");
        }
    }
}
