//! How much is held in memory, and whole distributions.

use crate::Store;
use crate::layers::Sizes;
use serde::Serialize;
use syncline_counters::Distributions;

syncline_counters::figures! {
    /// Amounts that a store holds in memory, and nodes that its tree has read and written.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub struct CacheCounters {
        /// Bytes of changes since the last checkpoint, roughly.
        memtable_bytes: gauge("memtable").bytes(),
        /// Items that changed since the last checkpoint.
        memtable_items: gauge("memtable_items"),
        /// Bytes of log that is not sealed yet.
        pending_log_bytes: gauge("log_pending").bytes(),
        /// Tree nodes in memory.
        nodes: gauge("tree_nodes_cached"),
        /// Memory that tree nodes take.
        node_bytes: gauge("tree_node_cache").bytes(),
        /// Tree nodes read from the device.
        nodes_read: total("tree_nodes_read"),
        /// Tree nodes written to the device.
        nodes_written: total("tree_nodes_written"),
    }
}

impl Store {
    /// Every distribution at this moment.
    pub fn distributions(&self) -> Distributions {
        self.counters.distributions()
    }

    /// The amounts held in memory at this moment, and the nodes read and written so far.
    pub fn caches(&self) -> CacheCounters {
        let pending_log_bytes = self.log.backlog().pending_bytes as u64;
        let Sizes { active, frozen, .. } = self.layers.sizes();
        let (items, bytes) = frozen.unwrap_or_default();
        let (memtable_items, memtable_bytes) = ((active.0 + items) as u64, (active.1 + bytes) as u64);
        let (nodes, node_bytes) = self.layers.tree().cached_nodes();
        let tree = self.layers.tree().counters();
        let (nodes_read, nodes_written) = (tree.nodes_read, tree.nodes_written);
        CacheCounters {
            memtable_bytes,
            memtable_items,
            pending_log_bytes,
            nodes,
            node_bytes,
            nodes_read,
            nodes_written,
        }
    }
}
