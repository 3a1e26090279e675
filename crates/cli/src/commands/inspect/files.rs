//! Inodes and paths.

use super::answer::{Answer, number};
use super::decode;
use super::image::Image;
use super::tree::{each_item, of_kind};
use bytes::Bytes;
use serde_json::{Value, json};
use syncline_device::block_on;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::Parent;
use syncline_format::{Key, Kind, block_checksums};

/// The inode of the root directory.
const ROOT: u64 = syncline_fs::types::ROOT;
/// The most directories in a path; more means a loop.
const DEPTH_MAX: usize = 4096;
/// The most extents and entries that are shown.
const SHOWN_MAX: usize = 10_000;

fn get(image: &Image, key: Key) -> Result<Option<Bytes>, String> {
    block_on(image.store()?.get(key)).map_err(|error| error.to_string())
}

/// An inode, its paths and its extents.
pub fn inode(image: &Image, arguments: &[&str]) -> Answer {
    let ino = number(arguments[0])?;
    let value =
        get(image, Key::new(ino, Kind::Inode, 0))?.ok_or_else(|| format!("there is no inode {ino}"))?;
    let mut told = decode::item(Key::new(ino, Kind::Inode, 0), &value);
    let (from, to) = of_kind(ino, Kind::Extent);
    let (mut extents, mut bad) = (Vec::new(), 0);
    let lost = each_item(image, from, to, |key, value| {
        let mut extent = decode::item(key, value);
        if let Ok(decoded) = Extent::decode(key.offset, value) {
            let data = compared(image, &decoded);
            bad += u64::from(data.is_err());
            extent["data"] = data.unwrap_or_else(|why| why).into();
        }
        extents.push(extent);
        extents.len() < SHOWN_MAX
    })?;
    told["paths"] = all_paths(image, ino).map_or_else(|why| json!([why]), |paths| json!(paths));
    told["extents_damaged"] = bad.into();
    told["unreadable"] = lost.into();
    told["list"] = extents.into();
    Ok(told)
}

/// Reads an extent's data, compares its checksums and decodes compressed data.
fn compared(image: &Image, extent: &Extent) -> Result<String, String> {
    let data = image.read(extent.addr, extent.run().blocks).map_err(|why| format!("UNREADABLE: {why}"))?;
    let found: Vec<_> = block_checksums(&data).collect();
    let wrong = found.iter().zip(&extent.checksums).enumerate().filter(|(_, (found, told))| found != told);
    let wrong: Vec<String> = wrong.map(|(at, _)| (extent.addr + at as u64).to_string()).collect();
    if wrong.is_empty() {
        if let Some(packed) = &extent.packed {
            syncline_codec::unpack(packed, &data).map_err(|error| format!("DAMAGED: {error}"))?;
        }
        Ok("as its checksums say".into())
    } else {
        Err(format!("DAMAGED: blocks {}", wrong.join(", ")))
    }
}

/// The entries of a directory.
fn entries(
    image: &Image,
    directory: u64,
    mut take: impl FnMut(&Dirent<'_>) -> bool,
) -> Result<Vec<Value>, String> {
    let (from, to) = of_kind(directory, Kind::Dirent);
    each_item(image, from, to, |_, value| Dirent::decode(value).map_or(true, |entry| take(&entry)))
}

/// The inode that a path names.
fn resolve(image: &Image, path: &str) -> Result<u64, String> {
    let mut ino = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let mut found = None;
        let lost = entries(image, ino, |entry| {
            found = (entry.name == name.as_bytes()).then_some(entry.ino);
            found.is_none()
        })?;
        ino = found.ok_or_else(|| match lost.len() {
            0 => format!("there is no '{name}' in inode {ino}"),
            lost => {
                format!(
                    "there is no '{name}' in the readable part of inode {ino}: {lost} tree nodes are lost"
                )
            }
        })?;
    }
    Ok(ino)
}

/// Shows the inode that a path names.
pub fn path(image: &Image, arguments: &[&str]) -> Answer {
    let ino = resolve(image, arguments[0])?;
    inode(image, &[ino.to_string().as_str()])
}

/// A directory's entries.
pub fn list(image: &Image, arguments: &[&str]) -> Answer {
    let ino = resolve(image, arguments[0])?;
    let mut list = Vec::new();
    let lost = entries(image, ino, |entry| {
        list.push(json!({ "name": decode::lossy(entry.name), "inode": entry.ino, "type": entry.file_type }));
        list.len() < SHOWN_MAX
    })?;
    Ok(json!({ "inode": ino, "unreadable": lost, "list": list }))
}

/// The paths of an inode.
pub fn paths(image: &Image, arguments: &[&str]) -> Answer {
    let ino = number(arguments[0])?;
    Ok(json!({ "inode": ino, "list": all_paths(image, ino)? }))
}

/// The names of an inode, each with its directory.
fn names(image: &Image, ino: u64) -> Result<Vec<(u64, String)>, String> {
    let value =
        get(image, Key::new(ino, Kind::Inode, 0))?.ok_or_else(|| format!("there is no inode {ino}"))?;
    let item = InodeItem::decode(&value).map_err(|error| format!("inode {ino}: {error}"))?;
    let mut names: Vec<(u64, String)> =
        item.parents.iter().map(|parent| (parent.parent, decode::lossy(parent.name))).collect();
    let (from, to) = of_kind(ino, Kind::Parent);
    each_item(image, from, to, |_, value| {
        names.extend(Parent::decode(value).map(|parent| (parent.parent, decode::lossy(parent.name))));
        names.len() < SHOWN_MAX
    })?;
    Ok(names)
}

fn all_paths(image: &Image, ino: u64) -> Result<Vec<String>, String> {
    if ino == ROOT {
        return Ok(vec!["/".into()]);
    }
    if !image.superblock()?.has_parent_pointers() {
        return Err("the image keeps no parent pointers".into());
    }
    names(image, ino)?
        .into_iter()
        .map(|(parent, name)| Ok(format!("{}/{name}", above(image, parent)?)))
        .collect()
}

/// The path of a directory, without a trailing slash. If it can't be followed to the root, it
/// begins with the place where it breaks off.
fn above(image: &Image, directory: u64) -> Result<String, String> {
    let mut path = String::new();
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ROOT {
            return Ok(path);
        }
        match names(image, at).map(|names| names.into_iter().next()) {
            Ok(Some((parent, name))) => (path, at) = (format!("/{name}{path}"), parent),
            _ => break,
        }
    }
    Ok(format!("<inode {at}>{path}"))
}
