//! Progress of a pull, shown while a task is pulled.

use std::fmt;

use tokio::sync::watch;
use warren_registry::Digest;

use crate::document::Descriptor;

/// Progress of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePullProgress {
    /// The layers, lowest first; empty until the manifest is known.
    pub layers: Vec<LayerProgress>,
    /// Why the pull waits for its next retry, as text.
    pub retry_reason: Option<String>,
}

/// Progress of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    /// Digest of the layer.
    pub digest: Digest,
    /// Stored size in bytes.
    pub size: u64,
    /// Bytes received; equals `size` for a layer that was already present.
    pub received: u64,
    /// Stage of the layer.
    pub stage: LayerStage,
}

/// Stages of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerStage {
    /// Downloading, or queued.
    Fetching,
    /// Stored, with a verified digest.
    Fetched,
    /// Unpacked into a snapshot.
    Unpacked,
}

impl ImagePullProgress {
    /// Number of layers at `stage` or beyond.
    pub fn count_at_least(&self, stage: LayerStage) -> usize {
        self.layers.iter().filter(|layer| layer.stage >= stage).count()
    }

    /// Received and total bytes.
    pub fn bytes(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), layer: &LayerProgress| {
            (sum.0.saturating_add(layer.received), sum.1.saturating_add(layer.size))
        };
        self.layers.iter().fold((0, 0), add)
    }
}

/// One line: `pulling image: 3 of 5 layers, 34 of 80 MiB`.
impl fmt::Display for ImagePullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.layers.len();
        let (fetched, unpacked) =
            (self.count_at_least(LayerStage::Fetched), self.count_at_least(LayerStage::Unpacked));
        let (received, total) = self.bytes();
        if all == 0 {
            f.write_str("pulling image: contacting the registry")?;
        } else if fetched < all {
            const UNITS: [(&str, u64); 3] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)];
            let unit = UNITS.into_iter().rev().find(|(_, unit)| total >= 10 * unit);
            let (name, unit) = unit.unwrap_or(("B", 1));
            write!(
                f,
                "pulling image: {fetched} of {all} layers, {} of {} {name}",
                received / unit,
                total / unit
            )?;
        } else {
            write!(f, "unpacking image: {unpacked} of {all} layers")?;
        }
        match &self.retry_reason {
            None => Ok(()),
            Some(reason) => write!(f, "; {reason}"),
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct ProgressSender(watch::Sender<ImagePullProgress>);

impl ProgressSender {
    pub fn new() -> (Self, watch::Receiver<ImagePullProgress>) {
        let (sender, receiver) = watch::channel(ImagePullProgress::default());
        (Self(sender), receiver)
    }

    pub fn set_layers(&self, layers: &[Descriptor]) {
        let begun = |layer: &Descriptor| LayerProgress {
            digest: layer.digest.clone(),
            size: layer.size,
            received: 0,
            stage: LayerStage::Fetching,
        };
        self.0.send_modify(|progress| progress.layers = layers.iter().map(begun).collect());
    }

    pub fn add_received(&self, position: usize, bytes: u64) {
        self.change(position, |layer| layer.received = bytes);
    }

    pub fn set_fetched(&self, position: usize) {
        self.change(position, |layer| layer.stage = LayerStage::Fetched);
    }

    pub fn set_unpacked(&self, position: usize) {
        self.change(position, |layer| layer.stage = LayerStage::Unpacked);
    }

    pub fn set_retry_reason(&self, reason: Option<String>) {
        self.0.send_if_modified(|progress| {
            let is_changed = progress.retry_reason != reason;
            progress.retry_reason = reason;
            is_changed
        });
    }

    fn change(&self, position: usize, change: impl FnOnce(&mut LayerProgress)) {
        self.0.send_modify(|progress| change(&mut progress.layers[position]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layers: &[(u64, u64, LayerStage)], reason: Option<&str>, want: &str) {
        let layer = |(received, size, stage): &(u64, u64, LayerStage)| LayerProgress {
            digest: Digest::of(b""),
            size: *size,
            received: *received,
            stage: *stage,
        };
        let progress = ImagePullProgress {
            layers: layers.iter().map(layer).collect(),
            retry_reason: reason.map(str::to_owned),
        };
        assert_eq!(progress.to_string(), want);
    }

    #[test]
    fn progress_reads_as_a_line() {
        use LayerStage as S;
        const MIB: u64 = 1 << 20;
        check(&[], None, "pulling image: contacting the registry");
        check(&[], Some("it stalled"), "pulling image: contacting the registry; it stalled");
        let three = [(20 * MIB, 20 * MIB, S::Unpacked), (9 * MIB, 9 * MIB, S::Fetched)];
        check(
            &[three[0], three[1], (5 * MIB + 1, 51 * MIB, S::Fetching)],
            None,
            "pulling image: 2 of 3 layers, 34 of 80 MiB",
        );
        check(&three, None, "unpacking image: 1 of 2 layers");
        check(&[(0, 9000, S::Fetching)], None, "pulling image: 0 of 1 layers, 0 of 9000 B");
        check(&[(20 << 10, 30 << 10, S::Fetching)], None, "pulling image: 0 of 1 layers, 20 of 30 KiB");
    }
}
