// Package store keeps values in the files of a folder.
package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// A Store is a folder with a file for each key.
type Store struct {
	folder string
	// withoutSync leaves out an fsync that is needed, to show what a power cut does then.
	withoutSync bool
}

// Open uses a folder as a store. It removes what an interrupted Put has left.
func Open(folder string) (*Store, error) {
	drafts, err := filepath.Glob(filepath.Join(folder, "*.draft"))
	if err != nil {
		return nil, err
	}
	for _, draft := range drafts {
		if err := os.Remove(draft); err != nil {
			return nil, err
		}
	}
	return &Store{folder: folder}, nil
}

// Put stores a value. When it returns, the value survives a power cut; until then the old one may.
func (s *Store) Put(key, value string) error {
	draft := filepath.Join(s.folder, key+".draft")
	file, err := os.Create(draft)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(value); err != nil {
		return err
	}
	if !s.withoutSync {
		if err := file.Sync(); err != nil {
			return err
		}
	}
	if err := os.Rename(draft, filepath.Join(s.folder, key)); err != nil {
		return err
	}
	folder, err := os.Open(s.folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// Get returns a value, or "" if there is none.
func (s *Store) Get(key string) (string, error) {
	value, err := os.ReadFile(filepath.Join(s.folder, key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(value), err
}
