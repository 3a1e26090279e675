//! The targets, one per file. Each is a function of bytes that panics if one of its invariants is
//! violated.

mod batch;
mod check;
mod item;
mod mount;
mod node;
mod replay;
mod snapshots;
mod space_page;
mod stream;
mod superblock;

pub use batch::batch;
pub use check::check;
pub use item::item;
pub use mount::mount;
pub use node::node;
pub use replay::replay;
pub use snapshots::snapshots;
pub use space_page::space_page;
pub use stream::stream;
pub use superblock::superblock;

use arbitrary::{Arbitrary, Unstructured};

/// A target by name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name in `cargo fuzz`, and the name of its corpus.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
    /// It opens whole images, which takes about a thousand times as long as decoding one structure.
    pub image: bool,
}

/// All targets.
pub const ALL: [Target; 10] = [
    Target { name: "superblock", run: superblock, image: false },
    Target { name: "node", run: node, image: false },
    Target { name: "item", run: item, image: false },
    Target { name: "batch", run: batch, image: false },
    Target { name: "space_page", run: space_page, image: false },
    Target { name: "snapshots", run: snapshots, image: false },
    Target { name: "replay", run: replay, image: true },
    Target { name: "mount", run: mount, image: true },
    Target { name: "check", run: check, image: true },
    Target { name: "stream", run: stream, image: true },
];

/// A value made from bytes; `None` if there are too few.
fn from_bytes<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(bytes)).ok()
}

/// Describes an input for a target.
pub fn describe(target: &Target, bytes: &[u8]) -> String {
    match target.name {
        "replay" => format!("{:#?}", from_bytes::<replay::Input>(bytes)),
        "mount" | "check" => format!("{:#?}", from_bytes::<mount::Input>(bytes)),
        "stream" => format!("{:#?}", from_bytes::<stream::Input>(bytes)),
        _ => format!("{bytes:02x?}"),
    }
}
