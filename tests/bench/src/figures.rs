//! Rows of figures: the measurement, the result, the target.

use serde_json::{Value, json};

/// All figures of one run.
#[derive(Default)]
pub struct BenchFigures(Vec<Value>);

impl BenchFigures {
    /// Adds a figure and prints it.
    pub fn add(&mut self, what: &str, value: f64, unit: &str, aim: &str) {
        println!("{what:<72} {:>12} {unit:<10} {}", short(value), aimed(aim));
        self.0.push(json!({"what": what, "value": value, "unit": unit, "aim": aim}));
    }

    /// The median of samples, with their spread.
    pub fn add_samples(&mut self, what: &str, samples: &[f64], unit: &str, aim: &str) {
        let Some(spread) = Spread::of(samples) else { return };
        let Spread { least, median, greatest } = spread;
        let shown = format!("{} [{}-{}]", short(median), short(least), short(greatest));
        println!("{what:<72} {shown:>12} {unit:<10} {}", aimed(aim));
        self.0.push(json!({
            "what": what, "value": median, "min": least, "max": greatest, "samples": samples.len(),
            "unit": unit, "aim": aim,
        }));
    }

    /// All rows.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", Value::Array(self.0.clone()))
    }
}

/// Minimum, median and maximum of some samples.
struct Spread {
    least: f64,
    median: f64,
    greatest: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        Some(Self { least, median: sorted[sorted.len() / 2], greatest })
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn aimed(aim: &str) -> String {
    if aim.is_empty() { String::new() } else { format!("(aim {aim})") }
}
