//! Results of any experiment as JSON: what was observed as one table, with its medians and what
//! systems differ in, around the measurements themselves.

use serde_json::{Value, json};

use super::results::Results;
use super::suite;

/// The version of the layout.
const FORMAT: u32 = 4;

pub fn json(results: &Results) -> Value {
    let document = results.document(None);
    let observations = results.observations();
    let tables = || observations.iter().map(|(table, _)| table);
    let mut value = match results {
        Results::Traffic(found) => json!(found),
        Results::Load(found) => json!(found),
        Results::Home(found) => json!(found),
        Results::Suite(found) => json!(found),
        Results::Model(found) => json!(found),
        Results::Block(found) => json!(found),
        Results::BlockSweep(found) => json!({ "sweep": found }),
    };
    value["format"] = json!(FORMAT);
    value["experiment"] = json!(results.experiment());
    value["about"] = json!(document.lead);
    value["whole"] = json!(results.is_whole());
    value["interrupted"] = json!(results.is_interrupted());
    value["problems"] = json!(document.problems);
    value["observed"] = json!({
        "summary": tables().flat_map(|table| table.summaries()).collect::<Vec<_>>(),
        "comparison": results.comparisons(),
        "values": tables().flat_map(|table| table.listed()).collect::<Vec<_>>(),
    });
    if let Results::Suite(campaign) = results {
        value["choices"] = json!(suite::verdicts(campaign));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;

    #[test]
    fn json_holds_measurements_and_observations() {
        let value = json(&Results::Traffic(Box::new(samples::campaign())));
        assert_eq!((&value["experiment"], &value["settings"]["streams"]), (&"traffic".into(), &2.into()));
        assert_eq!(value["runs"][0]["carried"][1]["tunnel"]["sent"]["dropped"], 0);
        let list = |name: &str| value["observed"][name].as_array().unwrap().to_vec();
        let goodputs = |name: &str| list(name).into_iter().filter(|one| one["quantity"] == "goodput").count();
        assert_eq!(goodputs("summary"), 6, "two systems with three numbers of clients");
        assert_eq!(goodputs("values"), 18, "in three rounds");
        assert!(list("comparison").iter().all(|one| one["first"] == "plain routing"));
        let broken = list("values").into_iter().find(|one| one["problem"] != "").unwrap();
        assert_eq!((&broken["value"], &broken["quantity"]), (&Value::Null, &"".into()));
        assert!(value["problems"][0].as_str().unwrap().contains("did> not come up"));
        assert_eq!((&value["whole"], &value["interrupted"]), (&false.into(), &false.into()));
        let text = serde_json::to_string(&value).unwrap();
        assert!(!text.contains("null,null"), "no field is a number that JSON cannot hold");
    }
}
