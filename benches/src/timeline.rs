//! Curves over time: a picture of a load that rises and falls, of what its requests took, and of the cores that answered them.

use crate::curve::Curve;
use crate::record::{Record, Series};
use crate::statistics::median;

/// Requests a second, by the beginning of a window in ms.
pub const REQUESTS: &str = "requests-per-s";

/// The 99th percentile of a window, in ms.
pub const P99_MS: &str = "p99-ms";

/// Cores that the service had in a window.
pub const CORES_OF_SERVICE: &str = "service-cores";

/// What the names of the same curves under a load of Isola's own begin with.
pub const OWN_CURVES: &str = "own-";

/// Width of the picture, and height of each of its parts.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 190.0;

/// The room beside a plot: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 26.0, 64.0, 20.0);

/// The room below the last one.
const FOOT: f64 = 24.0;

/// So high is a core.
const CORE_HEIGHT: f64 = 14.0;

/// The colours of the load, of latencies, and of cores.
const LOAD: &str = "#bbb";
const LATENCY: &str = "#c0392b";
const CORES: &str = "#2c5f8a";

/// One part of the picture.
struct Part {
    title: &'static str,
    /// What the names of its curves begin with.
    prefix: &'static str,
    of: fn(&Series) -> &[f64],
}

/// The parts, from top to bottom.
const PARTS: [Part; 3] = [
    Part { title: "Linux: two cgroups, by weight", prefix: "", of: |series| &series.peer },
    Part { title: "Isola: two cells, the same load", prefix: "", of: |series| &series.isola },
    Part {
        title: "Isola: a load of its own, as near to saturation as that is for Linux",
        prefix: OWN_CURVES,
        of: |series| &series.isola,
    },
];

impl Part {
    /// The medians of one of its curves: seconds, and values.
    fn points(&self, record: &Record, curve: &str) -> Vec<(f64, f64)> {
        let curve: Option<&Curve> = record.curves.get(&format!("{}{curve}", self.prefix));
        let windows = curve.into_iter().flatten().filter(|(_, series)| !(self.of)(series).is_empty());
        windows.map(|(&at_ms, series)| (at_ms as f64 / 1e3, median((self.of)(series)))).collect()
    }
}

/// Where things are in the picture.
struct Scale {
    most_s: f64,
    most_rate: f64,
    /// Powers of ten, of ms.
    decades: (i32, i32),
}

impl Scale {
    fn of(record: &Record) -> Option<Self> {
        let all = |curve: &'static str| PARTS.iter().flat_map(move |part| part.points(record, curve));
        let latencies = || all(P99_MS).map(|point| point.1).filter(|p99| *p99 > 0.0);
        Some(Self {
            most_s: all(REQUESTS).map(|point| point.0).reduce(f64::max)?.max(1.0),
            most_rate: all(REQUESTS).map(|point| point.1).reduce(f64::max)?.max(1.0),
            decades: (
                latencies().reduce(f64::min)?.log10().floor() as i32,
                latencies().reduce(f64::max)?.log10().ceil() as i32,
            ),
        })
    }

    fn x(&self, at_s: f64) -> f64 {
        let (left, _, right, _) = MARGIN;
        left + (WIDTH - left - right) * at_s / self.most_s
    }

    /// The height of a part of the plot, from 0 to 1, in the part of the picture that begins at `top`.
    fn y(top: f64, part: f64) -> f64 {
        let (_, above, _, below) = MARGIN;
        top + HEIGHT - below - (HEIGHT - above - below) * part.clamp(0.0, 1.0)
    }

    fn latency(&self, top: f64, p99_ms: f64) -> f64 {
        let (low, high) = (f64::from(self.decades.0), f64::from(self.decades.1));
        Self::y(top, (p99_ms.max(1e-3).log10() - low) / (high - low).max(1.0))
    }
}

/// The picture; `None` where a record has no such curves.
pub fn picture(record: &Record) -> Option<String> {
    let scale = Scale::of(record)?;
    let height = HEIGHT * PARTS.len() as f64 + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, part) in PARTS.iter().enumerate() {
        let top = HEIGHT * index as f64;
        frame(&mut svg, &scale, top, part.title);
        lines(&mut svg, &scale, top, part, record);
    }
    let bottom = HEIGHT * PARTS.len() as f64;
    for second in (0..=scale.most_s as u32).step_by(4) {
        let x = scale.x(f64::from(second));
        put(&mut svg, &text(x, bottom - 2.0, "middle", "#000", &second.to_string()));
    }
    put(&mut svg, &text(WIDTH / 2.0, bottom + 16.0, "middle", "#000", "seconds since the batch job began"));
    put(&mut svg, "</svg>");
    Some(svg)
}

/// The frame of a part: its title, its axes and what they mean.
fn frame(svg: &mut String, scale: &Scale, top: f64, title: &str) {
    let (left, above, right, _) = MARGIN;
    let end = WIDTH - right;
    put(svg, &text(left, top + above - 8.0, "start", "#000", title));
    for power in scale.decades.0..=scale.decades.1 {
        let value = 10_f64.powi(power);
        let y = scale.latency(top, value);
        put(
            svg,
            &format!("<line x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>"),
        );
        put(svg, &text(left - 6.0, y + 4.0, "end", LATENCY, &format!("{value} ms")));
    }
    let high = Scale::y(top, 1.0);
    put(svg, &text(end + 6.0, high + 4.0, "start", "#888", &format!("{:.0}/s", scale.most_rate)));
}

/// The lines of a part.
fn lines(svg: &mut String, scale: &Scale, top: f64, part: &Part, record: &Record) {
    let load = part.points(record, REQUESTS);
    let low = Scale::y(top, 0.0);
    if let (Some(first), Some(last)) = (load.first(), load.last()) {
        let points: Vec<String> = load
            .iter()
            .map(|&(at, rate)| format!("{:.1},{:.1}", scale.x(at), Scale::y(top, rate / scale.most_rate)))
            .collect();
        put(
            svg,
            &format!(
                "<polygon points=\"{:.1},{low:.1} {} {:.1},{low:.1}\" fill=\"{LOAD}\" fill-opacity=\"0.4\"/>",
                scale.x(first.0),
                points.join(" "),
                scale.x(last.0)
            ),
        );
    }
    let (_, above, right, _) = MARGIN;
    let cores = part.points(record, CORES_OF_SERVICE);
    let most = cores.iter().map(|point| point.1.ceil() as u32).max().unwrap_or_default();
    for count in 1..=most {
        let y = low - CORE_HEIGHT * f64::from(count) + 4.0;
        let label = if count == 1 { "1 core".to_owned() } else { format!("{count} cores") };
        put(svg, &text(WIDTH - right + 6.0, y, "start", CORES, &label));
    }
    polyline(svg, CORES, cores.into_iter().map(|(at, cores)| (scale.x(at), low - CORE_HEIGHT * cores)));
    let latencies = part.points(record, P99_MS).into_iter().filter(|point| point.1 > 0.0);
    polyline(svg, LATENCY, latencies.map(|(at, p99_ms)| (scale.x(at), scale.latency(top, p99_ms))));
    let legend = [("load", "#888"), ("p99", LATENCY), ("cores of the service", CORES)];
    for (index, (name, colour)) in legend.into_iter().enumerate() {
        let x = WIDTH - right - [170.0, 130.0, 0.0][index];
        put(svg, &text(x, top + above - 8.0, "end", colour, name));
    }
}

fn polyline(svg: &mut String, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    if !points.is_empty() {
        let points = points.join(" ");
        put(
            svg,
            &format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"),
        );
    }
}

fn text(x: f64, y: f64, anchor: &str, colour: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>")
}

fn put(svg: &mut String, line: &str) {
    svg.push_str(line);
    svg.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn each_part_of_a_picture_has_the_lines_that_there_are_within_its_frame() {
        let mut record = record("colocation-p99", &[1.0], &[2.0]);
        assert_eq!(picture(&record), None);
        for (at, rate) in [(0, 100.0), (500, 4_000.0), (1_000, 900.0)] {
            record.point(REQUESTS, at).peer.push(rate);
            record.point(P99_MS, at).peer.extend([rate / 100.0, rate / 10.0, rate / 50.0]);
            record.point(REQUESTS, at).isola.push(rate);
            record.point(P99_MS, at).isola.push(0.3);
            record.point(CORES_OF_SERVICE, at).isola.push(1.5);
        }
        let svg = picture(&record).unwrap();
        let lines: Vec<&str> = svg.lines().filter(|line| line.starts_with("<polyline")).collect();
        // Linux's latencies, Isola's cores and latencies; nothing of a load of its own.
        assert_eq!(lines.len(), 3);
        for (line, top) in lines.iter().zip([0.0, HEIGHT, HEIGHT]) {
            let points: Vec<(f64, f64)> = line
                .split('"')
                .nth(1)
                .unwrap()
                .split(' ')
                .map(|point| point.split_once(',').unwrap())
                .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                .collect();
            assert_eq!(points.len(), 3);
            assert!(points.is_sorted_by(|one, next| one.0 < next.0));
            assert!(
                points.iter().all(|&(x, y)| x <= WIDTH && (top..top + HEIGHT).contains(&y)),
                "{points:?}"
            );
        }
        assert!(svg.ends_with("</svg>\n"));
    }
}
