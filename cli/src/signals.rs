//! The signals that end this program, for commands that must clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to this program.
pub struct LocalSignals {
    pub ending: EndingSignals,
    /// The size of the terminal changed.
    pub resized: Signal,
}

/// Those that end it, with their numbers.
pub struct EndingSignals([(Signal, u32); 4]);

impl LocalSignals {
    pub fn new() -> io::Result<Self> {
        let ending = |kind: SignalKind| {
            let number = u32::try_from(kind.as_raw_value()).expect("signals have positive numbers");
            Ok::<_, io::Error>((signal(kind)?, number))
        };
        let ending = EndingSignals([
            ending(SignalKind::interrupt())?,
            ending(SignalKind::terminate())?,
            ending(SignalKind::hangup())?,
            ending(SignalKind::quit())?,
        ]);
        Ok(Self { ending, resized: signal(SignalKind::window_change())? })
    }
}

impl EndingSignals {
    /// The number of the next one.
    pub async fn next(&mut self) -> u32 {
        let [one, two, three, four] = &mut self.0;
        tokio::select! {
            _ = one.0.recv() => one.1,
            _ = two.0.recv() => two.1,
            _ = three.0.recv() => three.1,
            _ = four.0.recv() => four.1,
        }
    }
}

/// The exit code of a program that this signal ended.
pub fn killed(signal: u32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
