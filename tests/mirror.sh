# archive_find ORIGIN: print the first archive of Debian or Ubuntu in this host's apt sources, security updates and the like left out;
# nothing when there is none. Sourced by distros.sh and gpu/cuda12.sh.
archive_find() {
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk -v o="$1" '$1 == o && $2 == o { print $3; exit }'
}
