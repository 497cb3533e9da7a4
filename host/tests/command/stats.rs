//! `isola stats`.

use crate::sandbox::Sandbox;
use serde_json::Value;

#[test]
fn stats_have_the_sum_over_activities_and_the_overhead() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let view = sandbox.json(&["stats", "kv"]);
    let cycles = &view["cycles"];
    let number = |value: &Value| value.as_u64().unwrap();
    // Three pages of activities: 4,000 and 50, 123, 7.
    assert_eq!(number(&cycles["activities"]), 4_180, "{view}");
    let busy = number(&cycles["events"]) + number(&cycles["loop"]) + number(&cycles["interrupt"]);
    assert_eq!(number(&cycles["non_idle"]), busy);
    let overhead = number(&cycles["loop"]) as f64 * 100.0 / busy as f64;
    assert!((view["overhead_percent"].as_f64().unwrap() - overhead).abs() < 0.001, "{view}");
    assert_eq!((&view["answered"], &view["cores_without_answer"]), (&true.into(), &0.into()));
    assert_eq!(view["activity_tree"][1]["name"], "10.0.2.2:40001");
    let memory = &view["activity_tree"][0]["memory"];
    assert_eq!((&memory["charged_bytes"], &memory["soft_bytes"]), (&(70 << 20).into(), &(64 << 20).into()));
    assert_eq!((&memory["hard_bytes"], &memory["reclaimed_bytes"]), (&(128 << 20).into(), &(3 << 20).into()));
    assert_eq!(view["activity_tree"][1]["memory"], Value::Null);
    assert_eq!((&view["resources"][0]["waiting"], &view["resources"][0]["served"]), (&6.into(), &30.into()));
    assert_eq!(view["resources"][0]["mean_wait_ns"], 5_000);
    assert!(view["counters"].is_object() && view["memory"]["pool_bytes"].is_u64(), "{view}");
    let text = sandbox.isola(&["stats", "kv"]).ok();
    assert!(
        text.contains(&format!("{overhead:.3} % = (loop + scheduling + accounting) / all non-idle")),
        "{text}"
    );
    let web = text.lines().find(|line| line.starts_with("web ")).unwrap();
    assert!(web.contains("70 MiB") && web.contains("128 MiB") && web.trim_end().ends_with("3 MiB"), "{text}");
    assert!(text.contains("sum 4,180 cycles") && text.contains("  10.0.2.2:40001"), "{text}");
}

#[test]
fn stats_of_all_cells_include_those_that_do_not_answer_or_have_ended() {
    let sandbox = Sandbox::up();
    assert_eq!(sandbox.json(&["stats", "--all"]), Value::Array(vec![]));
    assert!(sandbox.isola(&["stats", "--all"]).err.contains("no cells"));
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox.isola(&["run", "-d", "--name", "mute", "kv", "mute"]).ok();
    sandbox.isola(&["run", "--name", "ended", "kv", "exit:0"]).ok();
    let views = sandbox.json(&["stats", "--all"]);
    let of = |name: &str| views.as_array().unwrap().iter().find(|view| view["name"] == name).unwrap();
    assert_eq!((&of("kv")["answered"], &of("mute")["answered"]), (&true.into(), &false.into()));
    assert_eq!((&of("ended")["answered"], &of("ended")["state"]), (&Value::Null, &"exited".into()));
    assert_eq!(
        (&of("mute")["counters"], of("mute")["cycles"]["activities"].as_u64()),
        (&Value::Null, Some(4_180))
    );
    let text = sandbox.isola(&["stats", "mute"]).ok();
    assert!(text.contains("does not answer queries: all figures are from its report"), "{text}");
    assert!(text.contains("infrastructure"), "{text}");
    sandbox.isola(&["stats", "kv", "nobody"]).failed(1, "nobody");
    assert_eq!(sandbox.json(&["stats", "kv", "ended"]).as_array().unwrap().len(), 2);
}
