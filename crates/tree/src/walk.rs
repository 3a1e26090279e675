//! Visits every node, for checks.

use crate::TreeError;
use crate::frame::{Frame, Place};
use crate::tree::{Caching, Tree};
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};

/// Children read ahead.
const WINDOW: usize = 16;
/// Nodes visited between two yields to the executor.
const NODES_PER_TURN: u64 = 32;

/// Called for each node with its level, its pointer, and the node itself or why it could not be
/// read.
pub type Visitor<'a> = dyn FnMut(u8, Pointer, Result<&Node, &TreeError>) + Send + 'a;

/// The outcome of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// Nodes that were read and are sound.
    pub nodes: u64,
    /// Nodes that could not be read or are damaged; the nodes below them were not visited.
    pub bad_nodes: u64,
}

impl Tree {
    /// Visits every node of the tree `root`, parents before their children, children in key order.
    /// Reads from the device, not from the cache, and continues after a bad node. Memory use does
    /// not grow with the tree.
    pub async fn walk(&self, root: TreeRoot, visitor: &mut Visitor<'_>) -> Walked {
        let mut walked = Walked::default();
        let mut stack: Vec<Frame> = Vec::new();
        let mut place = Place::root(root);
        let mut loaded = self.load(place, None, Caching::Bypass).await;
        loop {
            visitor(place.level, place.pointer, loaded.as_ref());
            match loaded {
                Ok(node) => {
                    walked.nodes += 1;
                    if node.level() > 0 {
                        stack.push(Frame::new(node, place.bound, 0));
                    }
                }
                Err(_) => walked.bad_nodes += 1,
            }
            if (walked.nodes + walked.bad_nodes).is_multiple_of(NODES_PER_TURN) {
                futures_lite::future::yield_now().await;
            }
            while stack.pop_if(|frame| frame.next == frame.node.len()).is_some() {}
            let Some(frame) = stack.last_mut() else { return walked };
            while frame.node.level() == 1 && frame.started() < WINDOW && frame.ahead < frame.node.len() {
                frame.read_ahead(self, frame.ahead, Caching::Bypass);
            }
            (place, loaded) = frame.step(self, Caching::Bypass).await;
        }
    }
}
