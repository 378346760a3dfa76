//! The model of `warren top`: what was read of the cluster, what was chosen of it, and the log of a task. Pure:
//! [`TopModel::press`] is what a key does, [`draw`] makes a picture, and `command::top` reads and writes.

pub mod draw;
mod keys;
mod log;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use warren_types::Timestamp;

use crate::view::node::NodeView;
use crate::view::top::TaskUsageRow;

pub use keys::TopAction;
pub use log::{LogEvent, LogPane};

/// What was read of the cluster.
pub struct ClusterPicture {
    /// Number of managers.
    pub managers: u32,
    /// Name of the leader; empty without one.
    pub leader: String,
    /// When that was.
    pub read_at: Timestamp,
    pub nodes: Vec<NodeView>,
    /// Tasks that have not ended.
    pub tasks: Vec<TaskUsageRow>,
}

/// The order of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOrder {
    /// Busiest first.
    Cpu,
    /// Largest first.
    Memory,
    Name,
    /// By state, then by name.
    State,
}

/// What `warren top` shows.
pub struct TopModel {
    picture: ClusterPicture,
    order: TaskOrder,
    is_reversed: bool,
    /// Part of the name, the node or the state of the tasks that are shown.
    filter: String,
    /// The keys that are pressed belong to the filter.
    is_filter_edited: bool,
    /// Positions of the tasks that are shown, in their order.
    shown: Vec<usize>,
    /// Id of the chosen task.
    chosen: Option<String>,
    log: Option<LogPane>,
    /// Why the picture is not up to date.
    warning: Option<String>,
}

impl TopModel {
    pub fn new(picture: ClusterPicture) -> Self {
        let mut model = Self {
            picture,
            order: TaskOrder::Cpu,
            is_reversed: false,
            filter: String::new(),
            is_filter_edited: false,
            shown: Vec::new(),
            chosen: None,
            log: None,
            warning: None,
        };
        model.arrange(0);
        model
    }

    /// Shows what was read since.
    pub fn renew(&mut self, picture: ClusterPicture) {
        let before = self.chosen_position().unwrap_or_default();
        (self.picture, self.warning) = (picture, None);
        self.arrange(before);
    }

    /// Shows why nothing could be read.
    pub fn warn(&mut self, why: &str) {
        self.warning = Some(format!("not up to date: {why}"));
    }

    /// The log that is shown.
    pub fn log_mut(&mut self) -> Option<&mut LogPane> {
        self.log.as_mut()
    }

    /// Position of the chosen task among those that are shown.
    fn chosen_position(&self) -> Option<usize> {
        let id = self.chosen.as_deref()?;
        self.shown.iter().position(|position| self.picture.tasks[*position].task().id() == id)
    }

    fn choose(&mut self, position: usize) {
        let task = self.shown.get(position.min(self.shown.len().saturating_sub(1)));
        self.chosen = task.map(|position| self.picture.tasks[*position].task().id().to_owned());
    }

    /// Selects and sorts the tasks. If the chosen task is gone, the one at `position`, its place before, is chosen.
    fn arrange(&mut self, position: usize) {
        let tasks = &self.picture.tasks;
        let filter = self.filter.to_lowercase();
        let is_shown = |row: &TaskUsageRow| {
            let (task, has) = (row.task(), |text: &str| text.to_lowercase().contains(&filter));
            has(task.name()) || has(task.node_name()) || has(&task.status_text())
        };
        self.shown = (0..tasks.len()).filter(|position| is_shown(&tasks[*position])).collect();
        self.shown.sort_by_cached_key(|position| {
            let (row, task) = (&tasks[*position], tasks[*position].task());
            let (cpu, memory) = row.measured().unzip();
            let (used, state) = match self.order {
                TaskOrder::Cpu => (cpu, String::new()),
                TaskOrder::Memory => (memory, String::new()),
                TaskOrder::Name => (None, String::new()),
                TaskOrder::State => (None, task.status_text()),
            };
            (Reverse(used), state, task.sort_key())
        });
        if self.is_reversed {
            self.shown.reverse();
        }
        if self.chosen_position().is_none() {
            self.choose(position);
        }
    }
}
