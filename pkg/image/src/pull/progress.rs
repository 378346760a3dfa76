//! How far a pull has come, for people who wait.

use std::fmt;

use tokio::sync::watch;

use crate::digest::Digest;
use crate::document::Descriptor;

/// How far a pull has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The layers, lowest first; empty until it is known which there are.
    pub layers: Vec<LayerProgress>,
    /// What the pull waits for when something went wrong, in words; it goes on by itself.
    pub trouble: Option<String>,
}

/// How far one layer has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    /// The layer.
    pub digest: Digest,
    /// Its size in bytes, as it is stored.
    pub size: u64,
    /// Bytes that have come. All of them at once for a layer that was here already.
    pub received: u64,
    /// Where it is.
    pub stage: Stage,
}

/// Where a layer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It comes, or waits for its turn.
    Fetching,
    /// It is stored and its digest was right.
    Fetched,
    /// Containers can use it.
    Unpacked,
}

impl Progress {
    /// Layers that have come at least to `stage`.
    pub fn at(&self, stage: Stage) -> usize {
        self.layers.iter().filter(|layer| layer.stage >= stage).count()
    }

    /// Bytes that have come, and all bytes.
    pub fn bytes(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), layer: &LayerProgress| {
            (sum.0.saturating_add(layer.received), sum.1.saturating_add(layer.size))
        };
        self.layers.iter().fold((0, 0), add)
    }
}

/// One line: `pulling: 3 of 5 layers, 34 of 80 MiB`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.layers.len();
        let (fetched, unpacked) = (self.at(Stage::Fetched), self.at(Stage::Unpacked));
        let (received, total) = self.bytes();
        if all == 0 {
            f.write_str("pulling: asking the registry")?;
        } else if fetched < all {
            const UNITS: [(&str, u64); 3] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)];
            let unit = UNITS.into_iter().rev().find(|(_, unit)| total >= 10 * unit);
            let (name, unit) = unit.unwrap_or(("B", 1));
            write!(f, "pulling: {fetched} of {all} layers, {} of {} {name}", received / unit, total / unit)?;
        } else {
            write!(f, "unpacking: {unpacked} of {all} layers")?;
        }
        match &self.trouble {
            None => Ok(()),
            Some(trouble) => write!(f, "; {trouble}"),
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Reporter(watch::Sender<Progress>);

impl Reporter {
    pub fn new() -> (Self, watch::Receiver<Progress>) {
        let (sender, receiver) = watch::channel(Progress::default());
        (Self(sender), receiver)
    }

    pub fn begin(&self, layers: &[Descriptor]) {
        let begun = |layer: &Descriptor| LayerProgress {
            digest: layer.digest.clone(),
            size: layer.size,
            received: 0,
            stage: Stage::Fetching,
        };
        self.0.send_modify(|progress| progress.layers = layers.iter().map(begun).collect());
    }

    pub fn received(&self, position: usize, bytes: u64) {
        self.change(position, |layer| layer.received = bytes);
    }

    pub fn fetched(&self, position: usize) {
        self.change(position, |layer| layer.stage = Stage::Fetched);
    }

    pub fn unpacked(&self, position: usize) {
        self.change(position, |layer| layer.stage = Stage::Unpacked);
    }

    pub fn troubled(&self, trouble: Option<String>) {
        self.0.send_if_modified(|progress| {
            let is_news = progress.trouble != trouble;
            progress.trouble = trouble;
            is_news
        });
    }

    fn change(&self, position: usize, change: impl FnOnce(&mut LayerProgress)) {
        self.0.send_modify(|progress| change(&mut progress.layers[position]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layers: &[(u64, u64, Stage)], trouble: Option<&str>, want: &str) {
        let layer = |(received, size, stage): &(u64, u64, Stage)| LayerProgress {
            digest: Digest::of(b""),
            size: *size,
            received: *received,
            stage: *stage,
        };
        let progress =
            Progress { layers: layers.iter().map(layer).collect(), trouble: trouble.map(str::to_owned) };
        assert_eq!(progress.to_string(), want);
    }

    #[test]
    fn progress_reads_as_a_line() {
        use Stage as S;
        const MIB: u64 = 1 << 20;
        check(&[], None, "pulling: asking the registry");
        check(&[], Some("it stalled"), "pulling: asking the registry; it stalled");
        let three = [(20 * MIB, 20 * MIB, S::Unpacked), (9 * MIB, 9 * MIB, S::Fetched)];
        check(
            &[three[0], three[1], (5 * MIB + 1, 51 * MIB, S::Fetching)],
            None,
            "pulling: 2 of 3 layers, 34 of 80 MiB",
        );
        check(&three, None, "unpacking: 1 of 2 layers");
        check(&[(0, 9000, S::Fetching)], None, "pulling: 0 of 1 layers, 0 of 9000 B");
        check(&[(20 << 10, 30 << 10, S::Fetching)], None, "pulling: 0 of 1 layers, 20 of 30 KiB");
    }
}
