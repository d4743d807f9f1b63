"""Fault drills: labelled faults that are really produced, and how often the playbook names them. The faults of a symptom stand in
`playbooks/<symptom>/drills.py`.
"""
