//! Medians of the figures, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

/// What was measured of one build in one scenario.
pub(crate) type Figure = (&'static str, String, &'static str);

/// A scenario, a build, and the medians of its figures.
type Row<'a> = (&'static str, &'a str, Vec<(&'a str, f64)>);

#[derive(Default)]
pub(crate) struct Report {
    /// In the order in which they were first measured.
    order: Vec<Figure>,
    values: BTreeMap<Figure, Vec<f64>>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        scenario: &'static str,
        build: &str,
        figure: &'static str,
        value: f64,
    ) {
        let name = (scenario, build.to_owned(), figure);
        if !self.values.contains_key(&name) {
            self.order.push(name.clone());
        }
        self.values.entry(name).or_default().push(value);
    }

    fn median(&self, name: &Figure) -> f64 {
        let mut values = self.values.get(name).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// One line a scenario and build. `×` is the ratio of its CPU time to nginx's.
    pub(crate) fn table(&self) -> String {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for name in &self.order {
            let (scenario, build, figure) = name;
            let value = (*figure, self.median(name));
            match rows.iter_mut().find(|row| row.0 == *scenario && row.1 == build) {
                Some(row) => row.2.push(value),
                None => rows.push((scenario, build, vec![value])),
            }
        }
        let mut text = String::new();
        for (scenario, build, figures) in rows {
            let _ = write!(text, "{scenario:<12} {build:<13}");
            for (figure, value) in figures {
                let _ = write!(text, "  {figure} {value:>9.1}");
                if figure == "cpu_us" {
                    let nginx = self.median(&(scenario, "nginx".to_owned(), "cpu_us"));
                    let _ = write!(text, " ({:.2}×)", value / nginx);
                }
            }
            text.push('\n');
        }
        text
    }

    /// `{scenario: {build: {figure: [values of the rounds]}}}`
    pub(crate) fn json(&self) -> String {
        let mut scenarios = Map::new();
        for (scenario, build, figure) in &self.order {
            let values = &self.values[&(*scenario, build.clone(), *figure)];
            let builds = scenarios.entry(*scenario).or_insert_with(|| Value::Object(Map::new()));
            builds[build][*figure] = Value::from(values.clone());
        }
        format!("{:#}\n", Value::Object(scenarios))
    }
}
